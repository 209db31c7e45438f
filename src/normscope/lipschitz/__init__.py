"""Spectral norms, composition, upper and lower bounds."""
