"""The papers: their claims as checks that run now, their constructions, figures and experiments."""
