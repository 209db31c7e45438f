"""Spectral norms of linear maps: certified from above, attained from below.

Unless stated otherwise, ``weight`` is the kernel ``(Cout, Cin, *k)`` of one channel group in float64, ``axes`` the
geometry of its convolution, and ``seed`` that of the random start vectors. Arguments that do not fit raise an
``InputError``, NaN and infinity in them a ``NonFiniteError``.
"""
