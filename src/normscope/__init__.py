"""Normscope: what normalization layers do to your network."""
