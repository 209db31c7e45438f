"""The test bench: problems whose risk is known, on which a false bound on the risk is seen to fail."""
