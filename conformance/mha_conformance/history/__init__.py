"""The history of asv's results as one page: series, lasting changes and plots. ``mha report`` writes it."""
