"""Certified constants on a ball around a point: ranges, then multipliers, rounding enclosed."""
