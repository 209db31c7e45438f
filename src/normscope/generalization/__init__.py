"""Generalization: where the error of a trained model comes from, and which guarantees hold for it.

What the functions of this folder have in common. Numbers that are out of their range raise an ``InputError``. Where
nothing else is said, the arguments are

    ``samples``     ``m`` or ``n``, the number of training samples
    ``delta``       the probability with which a bound may fail
    ``errors``      how many of the samples are wrong
    ``loss``        the average training loss over the posterior, or an upper bound of it
    ``divergence``  ``KL(posterior || prior)``, the prior chosen before the data
    ``bits``        the length of the code of the network
    ``dimension``   ``d``, the VC dimension of the family
    ``layers``      of a chain, the last one giving the scores
    ``inputs``      ``||X||_F`` of the training inputs, the constant of the bias included
    ``margin``      ``gamma``
    ``largest``     ``C``, the largest loss
    ``cells``       ``N``, all cells of a partition; ``occupied``, ``T``, those with a sample
"""

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
