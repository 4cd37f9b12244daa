"""Bounds by prices of nodes: some stage holds its share of them, and what that costs is found."""
