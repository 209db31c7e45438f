"""U. Akbar, Deep Network Normalization Through Gradient Flow Dynamics: its claims, chapter by chapter."""
