"""Losses: their Lipschitz constants with respect to the outputs of the network. One family, one file."""

from __future__ import annotations

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "loss_constant": "constants",
        "known_losses": "constants",
        "register_loss": "registry",
        "loss_at": "at_data",
        "corollary_14": "corollary",
        "corollary_14_printed": "corollary",
    },
)
