"""Report: a self-contained page of one run, or of several side by side."""
