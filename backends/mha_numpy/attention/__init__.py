"""The attention kernel ``tiles``: few queries and keys in few calls, everything else in tiles of scores on all cores.

``kernel`` is what dispatch calls. ``split`` cuts a problem into independent subproblems; ``subproblem`` describes one of them
and its tiles; ``tiles`` computes them, with ``masks_and_biases`` as seen by a tile and the ``exponential`` of its scores.
``few_pairs`` is the path for problems so small that calling NumPy costs more than computing.
"""
