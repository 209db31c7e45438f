"""Certified Lipschitz constants on a ball around a point; :mod:`.ball` chooses among the methods."""
