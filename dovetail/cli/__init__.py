"""Command line: reads run files, prints, and has the only table of names; imports all rooms."""
