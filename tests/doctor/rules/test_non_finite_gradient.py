"""NS308: gradients that are no numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from checking import found, noise
from networks import Lambda
from normscope.core.finding import Severity


def _rows(s: Lambda, x: Tensor) -> Tensor:
    y = s.fc(x)
    return y / (y.square().sum(-1, keepdim=True).sqrt() + 1e-8)


def test_rows_of_zeros_and_an_eps_behind_the_root() -> None:
    """Told with data that has such a row, and autograd agrees; not otherwise, and at inference it is a remark."""
    model, x = nn.Sequential(Lambda(_rows, fc=nn.Linear(6, 4, bias=False))), noise(8, 6)
    assert found("NS308", model, x) == []
    x[3] = 0.0
    (one,) = found("NS308", model, x)
    assert (one.place, one.severity) == ("0", Severity.ERROR)
    assert "0.fc.weight" in one.message
    (gradient,) = torch.autograd.grad(model(x).sum(), model[0].fc.weight)
    assert bool(gradient.isnan().any())
    assert [f.severity for f in found("NS308", model, x, purpose="inference")] == [Severity.INFO]


def test_weights_without_spread_need_no_data() -> None:
    """A filter of equal weights under weight standardization."""

    def forward(s: Lambda, x: Tensor) -> Tensor:
        w = s.conv.weight
        var, mean = torch.var_mean(w, (1, 2, 3), keepdim=True)
        return nn.functional.conv2d(x, (w - mean) / (var.sqrt() + 1e-5))

    model = nn.Sequential(Lambda(forward, conv=nn.Conv2d(3, 4, 3)))
    assert found("NS308", model, input_shape=(3, 6, 6)) == []
    with torch.no_grad():
        model[0].conv.weight[2] = 0.25
    for data, options in ((noise(4, 3, 6, 6), {}), (None, {"input_shape": (3, 6, 6)})):
        assert [f.place for f in found("NS308", model, data, **options)] == ["0"]


def test_the_gradient_of_the_input_alone_is_a_remark() -> None:
    """Nothing is learned before it."""
    model = nn.Sequential(Lambda(lambda s, x: x / (x.square().sum(-1, keepdim=True).sqrt() + 1e-8)), nn.Linear(6, 2))
    x = noise(8, 6)
    x[3] = 0.0
    assert [f.severity for f in found("NS308", model, x)] == [Severity.INFO]
