"""What `fit` is made of: sources of predictions, the search for the largest batch, results."""
