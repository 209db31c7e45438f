"""Checks shipped for people who add an operator or a bound."""
