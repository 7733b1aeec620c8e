"""Floor 1: the mathematics, in array-API calls only. Nothing here knows a backend, or any other floor."""
