"""Experiments: the papers' figures, trained and measured again. One figure, one setting per network."""
