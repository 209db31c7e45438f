"""Geometry: symmetries of networks with normalizers, the quantities they conserve, and exact derivatives."""
