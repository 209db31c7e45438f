"""Networks of the zoo, one architecture a file, each with any normalizer.

What several of them take: ``norm``, one of :data:`normscope.zoo.networks.normalizers.NORMS` (transformers: ``"ln"``,
``"rms"`` or ``"none"``); ``classes``, the outputs; ``channels`` of the image and ``image_size``, the pixels of a side;
``width``, the channels of the first convolution or the features of a token; ``depth`` and ``layers``, how many there
are; ``heads`` of each attention; ``vocabulary``, the number of tokens; ``features`` of each element of a sequence, its
``length``, and ``hidden``, the size of the state.
"""
