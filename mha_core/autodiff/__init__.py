"""Floor 1: reverse-mode differentiation of programs of array-API calls, for libraries without their own. No array library."""
