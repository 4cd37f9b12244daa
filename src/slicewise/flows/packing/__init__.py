"""What `pack` is made of: workloads and layouts as files, ways to serve, the fleet, the result."""
