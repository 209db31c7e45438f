"""Audits: every numbered claim of the papers as a check that runs now. One paper, one file."""
