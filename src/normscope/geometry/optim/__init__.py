"""Optimizers that keep scale-invariant weights on their spheres; the model's parameters stay plain ones."""

from normscope.geometry.optim.adam import RiemannianAdam
from normscope.geometry.optim.convert import riemannian, spheres_of
from normscope.geometry.optim.sgd import RiemannianSGD

__all__ = ["RiemannianAdam", "RiemannianSGD", "riemannian", "spheres_of"]
