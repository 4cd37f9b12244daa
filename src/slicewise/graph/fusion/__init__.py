"""What runtimes fuse: a small pattern language, and one table of rules for each runtime."""
