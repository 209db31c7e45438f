"""Curvature beside PyHessian, curvlinops (with scipy's eigsh) and hessian-eigenthings: the same work, one run."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.machine import environment, version
from normscope.curvature.density import spectral_density
from normscope.curvature.directions import Directions, row_groups
from normscope.curvature.problem import Problem
from normscope.curvature.products import Products
from normscope.curvature.quotient import quotient
from normscope.curvature.trace import moments
from normscope.graph.guard import same_bits
from normscope.linalg.thick_restart import eigenpairs, orthogonality, rayleigh
from normscope.zoo import catalogue as zoo
from normscope.zoo.networks.mlp import relu10
from normscope.zoo.randomness import seeded

Say = Callable[[str], None]
PEERS = ("pyhessian", "curvlinops-for-pytorch", "hessian-eigenthings")


def _named(variable: str) -> Path | None:
    """Return the path an environment variable holds, if it is set."""
    return Path(os.environ[variable]) if os.environ.get(variable) else None


@dataclass(frozen=True)
class Settings:
    """Sizes.

    Attributes:
        width: of the ten-layer network.
        samples: of its batch.
        images: of the batch of ResNet-20; 0 leaves it out.
        weights: a checkpoint of ResNet-20, if there is one: the environment variable NORMSCOPE_RESNET20.
        data_root: folder of CIFAR-10, if it is there (NORMSCOPE_DATA); otherwise the images are random.
        seeds: runs of the trace.
        small: width of the network with a dense truth.
    """

    width: int = 512
    samples: int = 128
    images: int = 16
    weights: Path | None = field(default_factory=lambda: _named("NORMSCOPE_RESNET20"))
    data_root: Path | None = field(default_factory=lambda: _named("NORMSCOPE_DATA"))
    seeds: int = 200
    small: int = 28


QUICK = Settings(width=8, samples=16, images=0, seeds=5, small=6)


def run(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """Measure eigenvalues, training mode, trace, density and condition number."""
    section: dict[str, Any] = {"environment": environment(), "peers": {name: version(name) for name in PEERS}}
    section["top"] = []
    for name, model, data in _cases(settings):
        for row in _top(name, model, data, say):
            section["top"].append(row)
            yield section
        section.setdefault("training", []).append(_training(name, model, data, say))
        yield section
    section["modes"] = _peers_in_training_mode(say)
    yield section
    section["small"] = _small(settings, say)
    yield section


def _cases(settings: Settings) -> Iterator[tuple[str, nn.Module, tuple[Tensor, Tensor]]]:
    """Yield networks with data."""
    with seeded(0):
        mlp = relu10("bn", width=settings.width, in_features=1024)
        x, y = torch.randn(settings.samples, 1024), torch.randint(0, 10, (settings.samples,))
    yield f"ten layers of {settings.width}, {settings.samples} samples", mlp, (x, y)
    if settings.images:
        with seeded(1):
            net = zoo.build("resnet20")
            data = torch.randn(settings.images, 3, 32, 32), torch.randint(0, 10, (settings.images,))
        if settings.weights is not None:
            from normscope.zoo.load import load_model

            net = load_model("zoo:resnet20", weights=settings.weights)
        if settings.data_root is not None:
            from normscope.zoo.data.load import load_data

            batch = load_data("cifar10", settings.data_root, "train", settings.images, normalize="imagenet").tensors()
            assert batch.labels is not None
            data = batch.inputs, batch.labels
        yield f"ResNet-20, {settings.images} images", net, data


def _top(name: str, model: nn.Module, data: tuple[Tensor, Tensor], say: Say) -> Iterator[dict[str, Any]]:
    """Find the largest five eigenvalues in evaluation mode with every tool; residuals are taken by our products."""
    model.eval()
    gradient = _gradient_seconds(model, data)
    for tool, find in TOOLS.items():
        say(f"{name}: {tool}")
        begin = time.process_time()
        try:
            vectors, products = find(model, data, "running")
        except Exception as error:
            yield {"case": name, "tool": tool, "error": _first_line(error)}
            continue
        cpu = time.process_time() - begin
        with Problem(model, data, mode="running", batch=len(data[0])) as problem:
            values, residuals = rayleigh(Products(problem), vectors)
        worst = float((residuals / np.abs(values)).max())
        yield {
            "case": name, "tool": tool, "values": sorted(values.tolist(), reverse=True), "residual": worst,
            "products": products, "cpu": cpu, "per_product": cpu / products / gradient if products else None,
        }  # fmt: skip


def _gradient_seconds(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    """Return the CPU time of one gradient by plain torch."""
    begin = time.process_time()
    for _ in range(3):
        loss = nn.functional.cross_entropy(model(data[0]), data[1])
        torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])
    return (time.process_time() - begin) / 3


def _first_line(error: Exception) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"


def _normscope(model: nn.Module, data: Any, mode: str) -> tuple[Tensor, int]:
    with Problem(model, data, mode=mode, batch=len(data[0])) as problem:
        start = torch.randn(problem.dimension, generator=torch.Generator().manual_seed(0))
        found = eigenpairs(Products(problem), start, largest=5, tolerance=1e-5)
    return found.vectors, found.products


def _curvlinops(model: nn.Module, data: Any, mode: str) -> tuple[Tensor, int]:
    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import LinearOperator, eigsh

    parameters = [p for p in model.parameters() if p.requires_grad]
    matrix = HessianLinearOperator(model, nn.CrossEntropyLoss(), parameters, [data]).to_scipy()
    count = [0]

    def product(v: np.ndarray) -> np.ndarray:
        count[0] += 1
        return matrix @ v

    counted = LinearOperator(matrix.shape, matvec=product, dtype=np.float32)
    _, vectors = eigsh(counted, k=5, which="LA", tol=1e-5)
    return torch.as_tensor(vectors.T.copy()), count[0]


def _eigenthings(model: nn.Module, data: Any, mode: str) -> tuple[Tensor, int]:
    from hessian_eigenthings import HessianOperator, lanczos
    from hessian_eigenthings.loss_fns import supervised_loss

    operator = HessianOperator(model, [data], supervised_loss(nn.CrossEntropyLoss()))
    found = lanczos(operator, k=5, max_iter=25, which="LA", seed=0)
    return found.eigenvectors, 25


def _pyhessian(model: nn.Module, data: Any, mode: str) -> tuple[Tensor, int]:
    from pyhessian import hessian

    _, vectors = hessian(model, nn.CrossEntropyLoss(), data=data, cuda=False).eigenvalues(top_n=5)
    flat = torch.stack([torch.cat([part.reshape(-1) for part in vector]) for vector in vectors]).detach()
    for parameter in model.parameters():
        parameter.grad = None  # it leaves gradients with their graph behind
    return flat / flat.norm(dim=1, keepdim=True), 0


TOOLS: dict[str, Callable[..., tuple[Tensor, int]]] = {
    "normscope": _normscope,
    "curvlinops + eigsh": _curvlinops,
    "hessian-eigenthings": _eigenthings,
    "PyHessian": _pyhessian,
}


def _training(name: str, model: nn.Module, data: tuple[Tensor, Tensor], say: Say) -> dict[str, Any]:
    """Find the largest five in training mode; nothing of the model may change."""
    say(f"{name}: normscope, training mode")
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    begin = time.process_time()
    with Problem(model, data, mode="batch", batch=len(data[0])) as problem:
        products = Products(problem)
        start = torch.randn(problem.dimension, generator=torch.Generator().manual_seed(0))
        found = eigenpairs(products, start, largest=5, tolerance=1e-5, keep_basis=True)
        cpu = time.process_time() - begin
        _, residuals = rayleigh(products, found.vectors)
    assert found.basis is not None
    return {
        "case": name, "values": found.values.tolist(), "residual": float((residuals / np.abs(found.values)).max()),
        "products": found.products, "cpu": cpu, "orthogonality": orthogonality(found.basis),
        "untouched": model.training and all(same_bits(v, before[n]) for n, v in model.state_dict().items()),
    }  # fmt: skip


def _peers_in_training_mode(say: Say) -> list[dict[str, Any]]:
    """Show what the peers do with BatchNorm in training mode, on a tiny network."""
    rows = []
    with seeded(0):
        x, y = torch.randn(32, 8), torch.randint(0, 10, (32,))
    for tool, find in TOOLS.items():
        with seeded(0):
            model = relu10("bn", width=8, depth=2, in_features=8).train()
        before = {name: b.clone() for name, b in model.named_buffers()}
        say(f"training mode: {tool}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                find(model, (x, y), "batch")
            what = "done"
        except Exception as error:
            what = _first_line(error)
        moved = max(float((b - before[name]).abs().max()) for name, b in model.named_buffers())
        rows.append({"tool": tool, "outcome": what, "buffers_moved_by": moved, "still_training": model.training})
    return rows


def _small(settings: Settings, say: Say) -> dict[str, Any]:
    """Measure trace, density and condition number against dense truths in float64."""
    with seeded(2):
        model = nn.Sequential(
            nn.Linear(20, settings.small), nn.BatchNorm1d(settings.small), nn.Tanh(),
            nn.Linear(settings.small, settings.small), nn.BatchNorm1d(settings.small), nn.Tanh(),
            nn.Linear(settings.small, 10),
        )  # fmt: skip
        x, y = torch.randn(200, 20), torch.randint(0, 10, (200,))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    say("small network: dense Hessian")
    with Problem(model, (x, y), dtype=torch.float64, batch=200) as problem:
        hessian, gauss = Products(problem).dense(), Products(problem, "ggn").dense()
        known = _every_symmetry(problem)
        say("small network: condition number")
        methods = ("dense", "dual", "lanczos")
        conditions = {m: quotient(problem, known, method=m, max_products=problem.dimension) for m in methods}
    found: dict[str, Any] = {"parameters": problem.dimension}
    found["condition"] = {
        m: {"smallest": q.smallest, "condition": q.condition, "converged": q.converged} for m, q in conditions.items()
    }
    say("small network: trace")
    found["trace"] = _trace(hessian, settings.seeds)
    say("small network: density")
    found["density"] = _density(gauss, known)
    return found


def _every_symmetry(problem: Problem) -> Directions:
    """Return scales and biases before BatchNorm, and the common shift of all classes."""
    parts = {block.name: block for block in problem.blocks}
    rows = []
    for name in ("0.bias", "3.bias", "6.weight", "6.bias"):
        size = parts[name].shape.numel()
        units = torch.eye(size) if name.startswith(("0", "3")) else torch.eye(size // 10).repeat(1, 10)
        whole = torch.zeros(len(units), problem.dimension, dtype=torch.float64)
        whole[:, parts[name].place] = units.double()
        rows.append(whole)
    return Directions(problem.point(), row_groups(problem, ["0.weight", "3.weight"]), torch.cat(rows))


def _trace(matrix: Tensor, seeds: int) -> dict[str, float]:
    """Return coverage and errors of the trace at 60 products."""
    truth = float(matrix.trace())
    covered, errors, plain = 0, [], []
    for seed in range(seeds):
        start = torch.randn(len(matrix), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        pairs = eigenpairs(lambda v: matrix @ v, start, largest=5, tolerance=0.0, max_products=30, keep_basis=True)
        estimate = moments(lambda v: matrix @ v, start, products=30, deflate=pairs, seed=seed).trace
        covered += estimate.low <= truth <= estimate.high
        errors.append(abs(estimate.value - truth) / abs(truth))
        plain.append(abs(moments(lambda v: matrix @ v, start, products=60, seed=seed).trace.value - truth) / abs(truth))
    return {
        "coverage": covered / seeds,
        "median_error": float(np.median(errors)),
        "hutchinson": float(np.median(plain)),
    }


def _density(matrix: Tensor, known: Directions) -> dict[str, float]:
    """Return Wasserstein distances to the dense spectrum at equal products."""
    truth = torch.linalg.eigvalsh(matrix).numpy()
    start = torch.randn(len(matrix), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = eigenpairs(lambda v: matrix @ v, start, largest=10, tolerance=1e-6)
    total = pairs.products + 4 * 20
    ours = spectral_density(lambda v: matrix @ v, start, steps=20, probes=4, directions=known, pairs=pairs)
    plain = spectral_density(lambda v: matrix @ v, start, steps=total // 4, probes=4)
    blurred = _blurred(plain, truth)
    return {"products": total, "ours": ours.distance(truth), "plain": plain.distance(truth), "blurred": blurred}


def _blurred(density: Any, truth: np.ndarray) -> float:
    """Return the distance of quadrature blurred by a Gaussian of range/steps, as hessian-eigenthings draws it."""
    from scipy.stats import wasserstein_distance

    places, _ = density.atoms()
    spread = float(places.max() - places.min())
    grid = np.linspace(places.min() - 0.1 * spread, places.max() + 0.1 * spread, 4000)
    curve, _ = density.smoothed(grid, spread / len(density.rules[0].nodes))
    return float(wasserstein_distance(grid, truth, np.maximum(curve, 0)))
