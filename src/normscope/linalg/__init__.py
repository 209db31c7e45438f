"""Spectral norms of linear maps: certified from above, attained from below."""
