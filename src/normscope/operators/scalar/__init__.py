"""Functions of one variable: from a formula to a certified enclosure of its slopes."""
