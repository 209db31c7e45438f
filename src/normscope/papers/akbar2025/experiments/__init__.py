"""The experiments of Section 8, many seeds at once, each claim of the paper beside what was measured."""
