"""The commands about pipeline stages: what they take, and how they show it."""
