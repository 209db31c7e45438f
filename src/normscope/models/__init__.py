"""The zoo: the papers' networks and common architectures, each with any normalizer."""
