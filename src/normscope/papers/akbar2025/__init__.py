"""U. Akbar, Deep Network Normalization Through Gradient Flow Dynamics."""
