"""Multiplier chains: one certificate for a whole part of a network, of linear maps and slope-restricted functions."""
