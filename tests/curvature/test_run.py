"""The whole measurement against dense eigenvalues."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import normscope
from curved import classifier, labelled, plain_hessian
from fingerprints import fingerprint
from normscope.core import memory
from normscope.core.errors import InputError, NotEnoughMemoryError, WeightsError
from normscope.curvature.problem import Problem
from normscope.curvature.products import Products
from normscope.curvature.run import Settings, curvature, verified
from normscope.linalg.thick_restart import eigenpairs, rayleigh


@pytest.mark.parametrize("mode", ["batch", "running"])
def test_eigenvalues_are_those_of_the_model_as_users_run_it_and_nothing_is_touched(mode: str) -> None:
    model, (x, y) = classifier().train(), labelled()
    model(x).sum().backward()
    before = fingerprint(model, x, y)
    found = normscope.curvature(model, (x, y), mode=mode, top=3, bottom=2, probes=5, density=2)
    assert fingerprint(model, x, y) == before
    truth = torch.linalg.eigvalsh(plain_hessian(model, x, y, train=mode == "batch"))
    assert found.converged
    assert [e.value for e in found.largest] == pytest.approx(truth.flip(0)[:3].tolist(), rel=1e-4)
    assert [e.value for e in found.smallest] == pytest.approx(truth[:2].tolist(), rel=1e-4)
    assert found.checks["symmetry"] < 1e-5
    assert found.checks["difference"] < 1e-3
    assert found.symmetry["explained"] >= 13 if mode == "batch" else found.symmetry["scale_groups"] == 0
    assert found.density is not None


def test_modes_are_compared_and_the_quotient_is_given_for_small_networks() -> None:
    found = curvature(classifier(), labelled(), matrix="ggn", modes=True, probes=0)
    assert set(found.modes) == {"batch", "running", "frozen-batch"}
    assert found.quotient is not None
    assert found.quotient["method"] == "dense"
    assert found.symmetry["scale_groups"] == 13
    assert found.symmetry["explained"] == 33  # scales and biases before BatchNorm, and the shift of all classes


def test_stopping_keeps_converged_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = Products.__call__, []

    def stopping(self: Products, vector: Tensor) -> Tensor:
        if self.matrix == "hessian":
            calls.append(1)
        if len(calls) > 25:
            raise KeyboardInterrupt
        return original(self, vector)

    monkeypatch.setattr(Products, "__call__", stopping)
    found = curvature(classifier(), labelled(), top=5, tolerance=1e-7, dtype=torch.float64)
    assert found.stopped
    assert found.largest[0].converged
    assert found.trace is None
    assert any("Stopped" in message for message in found.messages)


def test_what_has_not_converged_is_marked() -> None:
    found = curvature(classifier(), labelled(), max_products=7, probes=0)
    assert not found.converged
    assert any("have not converged" in message for message in found.messages)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="Known settings: mode"):
        curvature(classifier(), labelled(), colour="red")
    with pytest.raises(InputError, match="does not run on an input"):
        curvature(classifier(), labelled(inputs=9))
    x, y = labelled()
    with pytest.raises(InputError, match=f"Expected as many labels as inputs, got {len(x)} inputs and {len(x) - 1} la"):
        curvature(classifier(), (x, y[:-1]))
    monkeypatch.setattr(memory, "available", lambda: 100.0)
    with pytest.raises(NotEnoughMemoryError, match="fewer eigenvalues"):
        curvature(nn.Linear(4, 3), labelled())


def test_residuals_are_measured_and_noise_of_the_products_is_not_called_converged() -> None:
    with Problem(classifier(), labelled(), dtype=torch.float64) as problem:
        products = Products(problem)
        pairs = eigenpairs(products, torch.ones(problem.dimension, dtype=torch.float64), largest=3, tolerance=1e-8)
        same = verified(products, pairs, 1e-8)
        assert same.converged.all()
        np.testing.assert_allclose(same.residuals, np.maximum(pairs.residuals, rayleigh(products, pairs.vectors)[1]))
        exact, noise = Products.__call__, torch.randn(problem.dimension, dtype=torch.float64)
        products.__class__ = type("Noisy", (Products,), {"__call__": lambda self, v: exact(self, v) + 1e-4 * noise})
        assert not verified(products, pairs, 1e-8).converged.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_short_weights_are_computed_with_in_float32(dtype: torch.dtype) -> None:
    """The curvature is that of the model with the same weights in float32, and the model keeps its precision."""
    short, (x, y) = classifier().to(dtype), labelled()
    found = curvature(short, (x.to(dtype), y), top=2, probes=4)
    wide = curvature(copy.deepcopy(short).float(), (x.to(dtype).float(), y), top=2, probes=4)
    assert [e.value for e in found.largest] == [e.value for e in wide.largest]
    assert "float32" in found.messages[0]
    assert all(p.dtype == dtype for p in short.parameters())


class _Taking(nn.Module):
    """A network with an operation that torch cannot map over samples but one by one, as a mixture of experts has."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Take the entries of a hidden layer by their places."""
        hidden = self.norm(self.first(x)).relu()
        return self.last(torch.take(hidden, torch.arange(hidden.numel()).view(hidden.shape)))


@pytest.mark.parametrize("matrix", ["ggn", "hessian"])
def test_torch_does_not_tell_the_user_where_vmap_is_slow(matrix: str) -> None:
    """It is no concern of theirs; their own filters of warnings stay as they are."""
    torch.manual_seed(0)
    model, data = _Taking().eval(), (torch.randn(16, 6), torch.arange(16) % 3)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        filters = list(warnings.filters)
        curvature(model, data, matrix=matrix, mode="running", quotient=True)
        assert warnings.filters == filters
    assert not [w for w in told if "performance drop" in str(w.message)]


@pytest.mark.turns(3)
def test_an_iterator_and_a_loader_with_a_generator_of_its_own_are_read_once() -> None:
    model, (x, y) = classifier().train(), labelled()
    batches = [(x[:20], y[:20]), (x[20:], y[20:])]
    wanted = normscope.curvature(model, batches, probes=0, modes=True)
    found = normscope.curvature(model, iter(batches), probes=0, modes=True)
    assert found.largest[0].value == wanted.largest[0].value
    assert found.modes == wanted.modes
    shuffled = DataLoader(
        TensorDataset(x, y), batch_size=20, shuffle=True, generator=torch.Generator().manual_seed(0)
    )  # which gives other batches every time
    assert normscope.curvature(model, shuffled, probes=0).checks["difference"] < 1e-3


def test_a_regression_with_many_products_is_measured() -> None:
    model, (x, _) = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)), labelled()
    found = normscope.curvature(model, (x, x[:, :1] ** 2), way="linearize", probes=0, symmetry=False)
    assert found.cost["way"] == "linearize"
    other = normscope.curvature(model, (x, x[:, :1] ** 2), way="recompute", probes=0, symmetry=False)
    assert found.largest[0].value == pytest.approx(other.largest[0].value, rel=1e-5)


def test_a_linearization_that_holds_for_one_product_only_is_not_used() -> None:
    """Torch's record of GroupNorm's derivative changes its own constants in place."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    data = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 3
    settings = {"probes": 0, "symmetry": False, "mode": "running"}
    found = normscope.curvature(model, data, way="linearize", **settings)
    other = normscope.curvature(model, data, way="recompute", **settings)
    assert found.largest[0].value == pytest.approx(other.largest[0].value, rel=1e-4)


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_wrappers_are_looked_through(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model, data = classifier().train(), labelled()
    found = normscope.curvature(wrap(model), data, probes=0, symmetry=False)
    assert found.largest[0].value == normscope.curvature(model, data, probes=0, symmetry=False).largest[0].value


def test_weights_without_values_are_refused() -> None:
    with pytest.raises(WeightsError, match="lazy"):
        normscope.curvature(nn.LazyLinear(3), labelled())


@pytest.mark.parametrize(
    ("name", "value"),
    [("top", 0), ("bottom", -1), ("max_products", 0), ("probes", -1), ("density", -2), ("tolerance", float("nan")),
     ("batch", 0), ("limit", 0)],
)  # fmt: skip
def test_numbers_that_are_too_small_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"Expected {name} to be at least"):
        Settings(**{name: value})


def test_settings_choose_samples_parameters_and_precision() -> None:
    data = torch.zeros(9, 2), torch.zeros(9, 1)
    settings = {"batch": 4, "limit": 6, "parameters": "bias", "dtype": torch.float64}
    found = curvature(nn.Linear(2, 1), data, **settings, probes=1, symmetry=False)
    assert (found.data["samples"], found.data["batches"]) == (6, 2)
    assert [layer.name for layer in found.layers] == ["bias"]


def test_products_that_are_not_symmetric_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a relative gap far above the rounding of the type, but small."""
    exact = Products.__call__

    def skewed(self: Products, vector: Tensor) -> Tensor:
        return exact(self, vector) + 1e-4 * vector.roll(1) * exact(self, torch.ones_like(vector)).norm()

    for given, told in ((exact, False), (skewed, True)):
        monkeypatch.setattr(Products, "__call__", given)
        found = curvature(classifier(), labelled(), top=1, bottom=0, probes=0, dtype=torch.float64)
        assert any("not symmetric" in message for message in found.messages) is told
