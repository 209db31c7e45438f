"""Comparison: several results side by side, aligned by layer."""
