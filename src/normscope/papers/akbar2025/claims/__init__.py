"""U. Akbar, Deep Network Normalization Through Gradient Flow Dynamics: its claims, chapter by chapter."""

#: Its chapters in the order of the paper.
CHAPTERS = ("derivatives", "symmetries", "dynamics", "curvature", "convergence", "experiments")
