"""Candidates for symmetries, one file per kind: families of parameter changes that may leave the outputs unchanged.

Each file finds its candidates from the channel labels (:mod:`normscope.geometry.channels`) or from the graph, as
:class:`~normscope.geometry.groups.SymmetryGroup` values; :mod:`normscope.geometry.certificate` verifies them.
"""
