"""Generalization bounds for a trained classifier: from a model and its data to one table beside the truth."""
