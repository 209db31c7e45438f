"""Settings: the paper's is the paper's."""

from __future__ import annotations

import json

import pytest

from normscope.core.errors import InputError
from normscope.papers.than2025.figures.training_setting import FIGURES, SCALES, settings_of
from normscope.zoo.catalogue import build


@pytest.mark.parametrize("figure", FIGURES)
def test_the_papers_setting(figure: str) -> None:
    """Appendix E: Adam 1e-3, batches of 128, 100 epochs, weight decay 1e-4, all of CIFAR-10."""
    for setting in settings_of(figure, "paper"):
        assert (setting.lr, setting.batch, setting.epochs, setting.weight_decay) == (1e-3, 128, 100, 1e-4)
        assert (setting.data, setting.examples, setting.side) == ("cifar10", None, None)


@pytest.mark.parametrize("scale", SCALES)
def test_every_network_can_be_built(scale: str) -> None:
    """With ten classes, and its setting is plain data."""
    for figure in FIGURES:
        for setting in settings_of(figure, scale, seed=3):
            model = build(setting.network, seed=0, **setting.arguments)
            last = [p for p in model.parameters() if p.ndim == 1][-1]
            assert last.shape == (10,)
            assert json.loads(json.dumps(setting.to_dict()))["seed"] == 3


def test_unknown_figures_and_scales_are_told() -> None:
    """With those there are."""
    with pytest.raises(InputError, match="fig1, fig2, fig3"):
        settings_of("fig4", "paper")
    with pytest.raises(InputError, match="smoke, laptop, long, paper"):
        settings_of("fig1", "large")
