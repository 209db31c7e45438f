"""One streaming pass over data."""
