"""NS205: running statistics of a new layer under trained weights."""

from __future__ import annotations

import torch
from torch import nn

from checking import found, noise, places
from normscope.core.finding import Severity


def _network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 4, bias=False),
                         nn.BatchNorm1d(4))  # fmt: skip


def test_each_layer_is_told_for_its_own_sake() -> None:
    """Trained shifts with new statistics are an error; a new head behind a trained body is not."""
    model = _network()
    model(torch.randn(64, 6))
    assert places("NS205", model) == []
    with torch.no_grad():
        model[4].bias.normal_()
    model[4].reset_running_stats()
    (one,) = found("NS205", model)
    assert (one.place, one.severity) == ("4", Severity.ERROR)
    model[4] = nn.BatchNorm1d(4)
    assert found("NS205", model) == []


def test_scales_drawn_at_random_are_no_training() -> None:
    """As recipes for GANs draw them; a count of batches is."""
    model = _network()
    nn.init.normal_(model[1].weight, 1.0, 0.02)
    assert found("NS205", model) == []
    model[1].num_batches_tracked.fill_(7)
    assert "7 batches" in found("NS205", model)[0].message


def test_one_of_the_two_is_new() -> None:
    """A variance of exactly one beside gathered means, and the reverse; both gathered are neither."""
    for name, value, told in (("running_var", 1.0, True), ("running_mean", 0.0, True), ("running_var", 0.0, True)):
        model = _network()
        model(torch.randn(64, 6) + 1)
        assert found("NS205", model) == []
        getattr(model[1], name).fill_(value)
        assert places("NS205", model) == (["1"] if told else [])


def test_a_branch_of_zeros_keeps_its_mean() -> None:
    """Its variance falls in all channels alike."""
    model = _network()
    with torch.no_grad():
        model[0].weight.zero_()
        for _ in range(3):
            model(torch.randn(64, 6))
    assert places("NS205", model) == []


def test_a_new_network_that_is_used() -> None:
    """For inference, after steps of an optimizer, or between layers that have gathered; not before any of this."""
    x = 2 + torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    model = _network().eval()
    assert found("NS205", model, x) == []
    assert places("NS205", model, x, purpose="inference") == ["1", "4"]
    optimizer = torch.optim.Adam([model[0].weight])
    assert found("NS205", model, x, optimizer=optimizer) == []
    model(x).square().mean().backward()
    optimizer.step()
    assert "taken steps" in found("NS205", model, x, optimizer=optimizer)[0].message
    model = nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(6, 6, bias=False), nn.BatchNorm1d(6))))
    with torch.no_grad():
        model(x)
    model.eval()
    model[3] = nn.BatchNorm1d(6).eval()
    (one,) = found("NS205", model, x)
    assert (one.place, one.severity) == ("3", Severity.ERROR)


def test_a_normalizer_of_ones_own() -> None:
    """By its buffers, whatever its class."""
    norm = nn.Module()
    norm.weight, norm.bias = nn.Parameter(torch.ones(3)), nn.Parameter(torch.tensor([0.1, 0.2, 0.3]))
    norm.register_buffer("running_mean", torch.zeros(3))
    norm.register_buffer("running_var", torch.ones(3))
    model = nn.Sequential(nn.Linear(2, 3))
    model.norm = norm
    norm.forward = lambda x: x  # type: ignore[method-assign]
    assert places("NS205", model) == ["norm"]


class ByHand(nn.Module):
    """A BatchNorm of one's own in evaluation, its averages plain tensors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.mean, self.std = torch.zeros(width), torch.ones(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the standardized input, scaled and shifted."""
        return (x - self.mean) / self.std * self.gamma + self.beta


def test_averages_of_a_layer_written_by_hand() -> None:
    """New ones under a trained scale and shift; nothing of a layer that is new as a whole, or has gathered some."""
    model = nn.Sequential(nn.Linear(4, 6), ByHand(6)).eval()
    assert found("NS205", model, noise(32, 4)) == []
    nn.init.normal_(model[1].gamma), nn.init.normal_(model[1].beta)
    (one,) = found("NS205", model, noise(32, 4))
    assert one.place == "1"
    model[1].mean, model[1].std = torch.rand(6), torch.rand(6) + 0.5
    assert found("NS205", model, noise(32, 4)) == []


def test_evaluation_mode_from_the_start() -> None:
    """A new BatchNorm in evaluation mode inside a model that trains; not where all of it is in evaluation."""
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU()).train()
    assert found("NS205", model, noise(32, 4)) == []
    model[1].eval()
    (one,) = found("NS205", model, noise(32, 4))
    assert "normalizes nothing" in one.message
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert found("NS402", model, noise(32, 4), optimizer=optimizer) == []
    assert found("NS205", model.eval(), noise(32, 4)) == []
