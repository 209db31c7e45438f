r"""Labels of channels: integers that say which channels of a network a symmetry must scale, mix or permute together.

Each channel of each tensor gets a label ``l``, which stands for an unknown number ``x_l``: a diagonal symmetry
multiplies the channel by ``exp(t x_l)``. An operation of the network either passes labels on (reshapes, ReLU), makes
new ones (linear layers), or adds linear equations between the ``x_l`` (products, sums, normalizers). The solutions of
all equations are the diagonal symmetries. Labels also record which channels permutations and matrices may act on.

:mod:`labels <normscope.geometry.channels.labels>` holds the labels and their equations,
:mod:`network <normscope.geometry.channels.network>` the labels of one network's tensors and parameters, ``rules`` and
``normalizer_rules`` one rule per operation, and :mod:`labelling <normscope.geometry.channels.labelling>` applies them.
"""
