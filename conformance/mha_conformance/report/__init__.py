"""The report of a run: outcomes by section and promise, the summary in the terminal, and the certificate."""
