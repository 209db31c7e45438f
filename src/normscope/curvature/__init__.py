"""Curvature of the loss: products, spectra, sharpness and landscapes, in the mode people train in.

The package has the name of the function it offers, so that ``normscope.curvature(model, data)`` works whether or not a
module of the package was imported before.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """This package as a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Measure curvature; see :func:`normscope.curvature.run.curvature`."""
        from normscope.curvature.run import curvature

        return curvature(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
