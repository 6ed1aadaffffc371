"""Lines of papers, one file or folder each, which do not import one another."""
