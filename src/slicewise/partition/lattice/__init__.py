"""The exact method over ideals, its proof in rationals, and its bound where there are too many."""
