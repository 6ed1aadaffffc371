"""What developers of Dovetail run: files that are written from the code, kept out of the wheel."""
