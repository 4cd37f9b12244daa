"""The command `tune`: command, words, report, documents, page."""
