"""Multiplier chains: one certificate for a whole part of a network, of linear maps and slope-restricted functions.

Where nothing else is said, a ``form`` is such a part as matrices, for a search in units of its own; ``multipliers`` are
those of every unit, to begin with in a search; ``weights`` are the constants of the sources; ``balance`` are logarithms
of the constant allowed for each source, up to a common factor; and ``atoms`` are those of the network by their ids.
"""
