"""Normalizers: how each is recognised, and its Lipschitz constants in closed form, printed and proved.

What the functions of these files have in common. Constants and norms are in the 2-norm and rounded up, ranges are
rounded outward; where a map is not defined, or has no constant, they are infinite. Arguments that do not fit raise an
``InputError``, NaN and infinity in them a ``NonFiniteError``. The arguments are

    ``x``          the input: vectors along the axes of ``gamma``, or a tensor (samples, channels, *positions)
    ``gamma``      the scale, of the normalized shape or one entry per channel; ``None``, where it is allowed, for ones
    ``beta``       the shift, likewise, or ``None``
    ``eps``        the stabilizer, at least zero; ``None``, where it is allowed, for the default of torch
    ``s``          the floor of the spread before the normalizer, one number, or one per channel or group
    ``radius``     the radius of a ball around ``x``, in the 2-norm
    ``groups``     the number of groups of channels
    ``positions``  the number of positions per channel

``*_each`` and ``*_at`` are the norms of the Jacobian at ``x``, of every vector or the largest of them; ``*_global``,
``*_on_floor`` and ``*_on_ball`` are constants; ``*_printed`` and ``*_slides`` are what a paper prints.
"""
