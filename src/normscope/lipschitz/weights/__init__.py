"""Lipschitz constants in the weights: what a change of one weight can do to the output."""
