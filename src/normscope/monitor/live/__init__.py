"""Watching runs: a page fed while training writes, served on this machine alone, and a still copy of it."""
