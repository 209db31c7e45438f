"""Optimizers that keep scale-invariant weights on their spheres; the model's parameters stay plain ones."""

from normscope.geometry.optim.adam import RiemannianAdam
from normscope.geometry.optim.convert import riemannian
from normscope.geometry.optim.sgd import RiemannianSGD
from normscope.geometry.optim.spheres import spheres_of

__all__ = ["RiemannianAdam", "RiemannianSGD", "riemannian", "spheres_of"]
