"""The experiments of Section 8, with many seeds at once, and each claim of the paper beside the measurements."""
