"""K. Than, The Hidden Power of Normalization Layers in Neural Networks (2025): its claims, chapter by chapter."""
