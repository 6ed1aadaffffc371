"""Lines of papers, one file each; files here do not import one another."""
