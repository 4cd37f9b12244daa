"""People: command line and reports."""
