"""Data sets read from their standard files, and one that needs none."""
