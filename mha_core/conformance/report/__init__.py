"""What a run reports: outcomes by section and promise, the summary in the terminal, and the certificate."""
