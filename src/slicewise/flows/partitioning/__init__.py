"""What the verb `partition` is made of: sources, wishes, problems, results, stage files."""
