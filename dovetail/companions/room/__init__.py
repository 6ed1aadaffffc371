"""A page for each party: what is asked of it, what runs, what has left; and what it may stop."""
