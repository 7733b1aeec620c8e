"""Floor 1: the mathematics, in array-API calls only. Imports no other floor, and no backend."""
