"""What backends are timed on, and how: problems of attention, layers and texts with their exact answers, and fair clocks.

Ships in the wheel for ``mha bench``, as the conformance suite does. Names of this tree are imported relatively; ``mha_core``,
imported on need and by its name, is what is measured: an older one, where its history is.
"""
