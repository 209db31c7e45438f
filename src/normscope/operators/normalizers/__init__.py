"""Normalizers: their closed-form Lipschitz constants, printed and proved."""
