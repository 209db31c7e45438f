"""P. Cisneros-Velarde et al., optimization and generalization of weight-normalized networks (2025)."""
