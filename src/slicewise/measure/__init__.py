"""Taking measurements: runtimes, meters, shares, and the protocol that samples them."""
