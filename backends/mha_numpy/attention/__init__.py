"""The attention kernels ``tiles``: tiles of scores on all cores, a short path for small problems, and gradients.

``kernel`` has the function that dispatch calls. ``split`` cuts a problem into independent subproblems; ``subproblem`` describes
one of them and its tiles; ``tiles`` computes these, with the views of ``masks_and_biases`` and the base of ``exponential``.
``few_pairs`` is the path for problems so small that calling NumPy costs more than computing.

``gradients`` has the kernel of gradients, for the same subproblems: ``gradient_tiles`` computes tiles, ``gradient_sums`` holds
the arrays that tasks add to, and ``bias_gradients`` those of biases.
"""
