"""slicewise: right-size deep-learning inference."""
