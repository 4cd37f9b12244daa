"""The verbs: here rooms meet."""
