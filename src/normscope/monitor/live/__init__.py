"""Watching runs: a page that is updated during training, served to this machine only, and a static copy of it."""
