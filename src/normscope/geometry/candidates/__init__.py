"""Candidates for symmetries, found from the graph; each is verified before it is reported."""
