"""What a person may do without: each folder is of its own, and the core imports none of them."""
