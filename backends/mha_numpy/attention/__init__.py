"""The attention kernel ``tiles``: tiles of scores on all cores, and a short path for small problems.

``kernel`` has the function that dispatch calls. ``split`` cuts a problem into independent subproblems; ``subproblem`` describes
one of them and its tiles; ``tiles`` computes these, with the views of ``masks_and_biases`` and the base of ``exponential``.
``few_pairs`` is the path for problems so small that calling NumPy costs more than computing.
"""
