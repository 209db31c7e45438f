"""Geometry: what normalizers leave unchanged, what that conserves, and their exact first and second derivatives."""
