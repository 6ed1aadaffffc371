"""What reads a run file and prints, and the only table of names; imports from every room."""
