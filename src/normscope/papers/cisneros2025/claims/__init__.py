"""Claims of the summary on weight normalization: what it says, and what can be checked with explicit constants."""
