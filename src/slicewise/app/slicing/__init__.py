"""The commands about slices: what they take, and how they show it."""
