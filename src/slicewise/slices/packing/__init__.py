"""Many workloads on few GPUs, in numbers: material, patterns, prices, first fit, places."""
