"""Generalization bounds of a trained classifier: from a model and its data to one table next to the truth."""
