"""Networks of the zoo, one architecture a file, each with any normalizer.

What several of them take is described here, once:

- ``norm``: the normalizer, one of :data:`normscope.zoo.networks.normalizers.NORMS`; where tokens are normalized
  ``"ln"``, ``"rms"`` or ``"none"``
- ``classes``: the number of outputs; ``bias``: whether linear layers have one
- ``image_size`` and ``channels``: pixels of a side of the image, and its channels
- ``width``: channels of the first convolution or stage; of transformers, features of a token
- ``depth``: the number of blocks; ``heads``: heads of each attention; ``vocabulary``: the number of tokens
- ``features``, ``length`` and ``hidden``: values of one element of a sequence, its elements, and the size of the state
"""
