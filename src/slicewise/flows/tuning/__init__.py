"""What `tune` is made of: places for workers, the choice of a share, the matrix, the result."""
