"""Predictors of others, rebuilt from their descriptions, on the rows that ours is trained on."""
