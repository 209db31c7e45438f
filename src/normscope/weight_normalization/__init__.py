"""Optimization and generalization guarantees for weight-normalized networks, with every constant explicit.

Numbers that are out of their range raise an ``InputError``. Where nothing else is said, the arguments are

    ``depth``, ``width``         ``L``, the number of hidden layers, and ``m``, the units of each
    ``least_norm``               ``w``, the least norm of a weight vector
    ``output_norm``              ``rho``, a bound of the norm of the output layer
    ``input_norm``               ``A``, a bound of the norm of the inputs
    ``slope``, ``curvature``     ``a`` and ``b``, bounds of ``|phi'|`` and ``|phi''|`` of the activation
    ``loss``, ``loss_gradient``  the mean square loss and the norm of its gradient
    ``gradient``, ``hessian``    ``varrho`` and ``c_H``, bounds of the predictor's derivatives on the segment looked at
    ``samples``, ``delta``       ``n``, the number of examples, and the probability of failing
"""

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
