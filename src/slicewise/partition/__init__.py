"""Pipeline stages: the cut with the least bottleneck, and bounds that prove it."""
