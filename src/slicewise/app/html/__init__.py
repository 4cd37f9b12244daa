"""Pages that people open in a browser: building blocks and charts; each page builds on them."""
