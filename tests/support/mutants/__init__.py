"""Wrong kernels made from right ones: a mutant is a module of ours with one change of its source.

    python -m mutants.run mha_numpy.norms

run in the folder tests/support, judges mutants of a module by the covering design of the conformance suite, and reports those
that it does not find. ``operators`` makes the changes, ``table`` lists the modules and the kernels that judge them, and
``living.toml`` the mutants that may live, each with its reason. docs/mutants.md shows the last results.
"""
