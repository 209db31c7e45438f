"""From a model to a frozen graph."""
