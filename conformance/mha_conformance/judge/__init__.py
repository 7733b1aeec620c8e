"""Calls on the backend under test, compared with the oracle; failing random problems are shrunk for the report."""
