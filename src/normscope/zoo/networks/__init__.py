"""Networks of the zoo, one architecture a file, each with any normalizer."""
