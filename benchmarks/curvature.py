"""Curvature beside PyHessian, curvlinops (with scipy's eigsh) and hessian-eigenthings: the same work, one run."""

from __future__ import annotations

import itertools
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.curvature_modes import gaps
from benchmarks.curvature_monitor import followed, overheads
from benchmarks.machine import environment, version
from normscope.curvature.density import spectral_density
from normscope.curvature.directions import Directions, directions_of, row_groups
from normscope.curvature.gram import gram_of
from normscope.curvature.outputs import exact_trace
from normscope.curvature.problem import Problem
from normscope.curvature.products import Products
from normscope.curvature.quotient import quotient
from normscope.curvature.trace import KnownPart, moments
from normscope.geometry.discover import symmetry
from normscope.graph.guard import same_bits
from normscope.linalg.thick_restart import eigenpairs, rayleigh
from normscope.zoo import catalogue as zoo
from normscope.zoo.networks.mlp import relu10
from normscope.zoo.randomness import seeded

Say = Callable[[str], None]
#: Runs of each density, of whose distances the median is shown.
SEEDS = 5
PEERS = ("pyhessian", "curvlinops-for-pytorch", "hessian-eigenthings")


def _named(variable: str) -> Path | None:
    """Return the path an environment variable holds, if it is set."""
    return Path(os.environ[variable]) if os.environ.get(variable) else None


@dataclass(frozen=True)
class Settings:
    """Sizes.

    Attributes:
        width: of the ten-layer network.
        features: of its inputs.
        samples: of its batch.
        timed: samples of the batch on which its products are timed.
        images: of the batch of ResNet-20; 0 leaves it out.
        steps: updates of the trainings beside which the monitor reads.
        readings: of the largest eigenvalue along a run.
        weights: a checkpoint of ResNet-20, if there is one: the environment variable NORMSCOPE_RESNET20.
        data_root: folder of CIFAR-10, if it is there (NORMSCOPE_DATA); otherwise the images are random.
        seeds: runs of the trace.
        small: width of the networks with a dense truth.
        only: parts to measure: top, modes, small, dual, gaps, monitor, followed; all if empty.
    """

    width: int = 512
    features: int = 3072
    samples: int = 256
    timed: int = 512
    images: int = 64
    steps: int = 400
    readings: int = 30
    weights: Path | None = field(default_factory=lambda: _named("NORMSCOPE_RESNET20"))
    data_root: Path | None = field(default_factory=lambda: _named("NORMSCOPE_DATA"))
    seeds: int = 200
    small: int = 32
    only: tuple[str, ...] = ()


QUICK = Settings(width=8, features=16, samples=16, timed=16, images=0, steps=2, readings=3, seeds=5, small=6)


def run(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """Measure products, eigenvalues, training mode, trace, density, condition number and the monitor."""
    section: dict[str, Any] = {"environment": environment(), "peers": {name: version(name) for name in PEERS}}
    images = settings.data_root if settings.images else None
    parts: dict[str, Callable[[], Iterator[tuple[str, Any]]]] = {
        "top": lambda: _products_and_eigenvalues(settings, say),
        "modes": lambda: (("modes", row) for row in _peers_in_training_mode(say)),
        "small": lambda: iter([("small", _small(settings, say))]),
        "dual": lambda: (("dual", _dual(settings, norm, say)) for norm in (False, True)),
        "gaps": lambda: (("gaps", row) for row in gaps(settings.weights, images, say)),
        "monitor": lambda: (("monitor", row) for row in overheads(settings.steps, settings.weights, images, say)),
        "followed": lambda: (("followed", row) for row in followed(images, settings.readings, say)),
    }
    for name, part in parts.items():
        if (settings.only and name not in settings.only) or (name in ("gaps", "monitor") and not settings.images):
            continue
        for table, row in part():
            if table == "small":
                section[table] = row
            else:
                section.setdefault(table, []).append(row)
            yield section


def _products_and_eigenvalues(settings: Settings, say: Say) -> Iterator[tuple[str, Any]]:
    """Yield rows of the tables of products, of eigenvalues and of training mode."""
    for name, model, data, timed in _cases(settings):
        for mode in ("running", "batch"):
            yield "cost", _cost(name.split(",")[0], model, timed, mode, say)
        yield from (("top", row) for row in _top(name, model, data, say))
        yield "training", _training(name, model, data, say)


def _cases(settings: Settings) -> Iterator[tuple[str, nn.Module, tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
    """Yield networks with data, and with data on which products are timed."""
    with seeded(0):
        mlp = relu10(width=settings.width, in_features=settings.features)
        x, y = torch.randn(settings.samples, settings.features), torch.randint(0, 10, (settings.samples,))
    _train(mlp, x, y, 60, 1e-4)
    timed = torch.randn(settings.timed, settings.features), torch.randint(0, 10, (settings.timed,))
    yield f"ten layers of {settings.width}, {settings.samples} samples", mlp, (x, y), timed
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
        yield f"ResNet-20, {settings.images} images", net, data, data


def _top(name: str, model: nn.Module, data: tuple[Tensor, Tensor], say: Say) -> Iterator[dict[str, Any]]:
    """Find the largest five eigenvalues in evaluation mode with every tool; residuals are taken by our products."""
    model.eval()
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
            "products": products, "cpu": cpu,
        }  # fmt: skip


def _train(model: nn.Module, x: Tensor, y: Tensor, steps: int, rate: float) -> None:
    """Train for some steps, so that the spectrum is that of a network in use."""
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def _cost(name: str, model: nn.Module, data: tuple[Tensor, Tensor], mode: str, say: Say) -> dict[str, Any]:
    """Compare gradients by plain torch with products, in turns; the least of several is what the work costs."""
    say(f"{name}: products in {mode} mode")
    parameters = [p for p in model.parameters() if p.requires_grad]
    before = {name: b.clone() for name, b in model.named_buffers()}
    gradients, products = [], []

    def gradient() -> None:
        model.train(mode == "batch")
        torch.autograd.grad(nn.functional.cross_entropy(model(data[0]), data[1]), parameters)

    begin = time.process_time()
    with Problem(model, data, mode=mode, batch=len(data[0])) as problem:
        multiply = Products(problem)
        setup = time.process_time() - begin
        vector = torch.randn(problem.dimension, generator=torch.Generator().manual_seed(0))
        torch.nn.functional.normalize(vector, dim=0, out=vector)
    for _ in range(8):
        begin = time.process_time()
        gradient()
        gradients.append(time.process_time() - begin)
        begin = time.process_time()
        multiply(vector)
        products.append(time.process_time() - begin)
    for key, buffer in model.named_buffers():
        buffer.copy_(before[key])
    return {
        "case": f"{name}, {len(data[0])} samples", "mode": mode, "setup": setup,
        "gradient": min(gradients), "product": min(products),
        "ratio": min(products) / min(gradients), "median_ratio": float(np.median(products) / np.median(gradients)),
    }  # fmt: skip


def _first_line(error: Exception) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:160]}"


def _normscope(model: nn.Module, data: Any, mode: str) -> tuple[Tensor, int]:
    with Problem(model, data, mode=mode, batch=len(data[0])) as problem:
        start = torch.randn(problem.dimension, generator=torch.Generator().manual_seed(0))
        found = eigenpairs(Products(problem), start, largest=5, tolerance=5e-6)
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
        found = eigenpairs(products, start, largest=5, tolerance=4e-6, keep_basis=True)
        cpu = time.process_time() - begin
        _, residuals = rayleigh(products, found.vectors)
    assert found.basis is not None
    basis = found.basis.double()
    return {
        "case": name, "values": found.values.tolist(), "residual": float((residuals / np.abs(found.values)).max()),
        "products": found.products, "cpu": cpu,
        "orthogonality": float((basis @ basis.mT - torch.eye(len(basis))).abs().max()),
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
    width = settings.small // 2
    with seeded(2):
        normed = nn.Sequential(
            nn.Linear(12, width), nn.BatchNorm1d(width), nn.Tanh(),
            nn.Linear(width, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 4),
        )  # fmt: skip
        x, y = torch.randn(200, 12), torch.randint(0, 4, (200,))
    _train(normed, x, y, 100, 1e-2)
    say("small network: condition number")
    with Problem(normed, (x, y), dtype=torch.float64, batch=200) as problem:
        known = _every_symmetry(problem)
        methods = ("dense", "dual", "lanczos")
        conditions = {m: quotient(problem, known, method=m, max_products=problem.dimension) for m in methods}
    found: dict[str, Any] = {"condition_parameters": problem.dimension}
    found["condition"] = {
        m: {"smallest": q.smallest, "condition": q.condition, "converged": q.converged} for m, q in conditions.items()
    }
    found["plain"] = [_plain(settings, activation, say) for activation in (nn.Tanh, nn.ReLU)]
    return found


def _plain(settings: Settings, activation: type[nn.Module], say: Say) -> dict[str, Any]:
    """Measure trace and density of a network without BatchNorm, which the peers can take too."""
    name, width = activation.__name__, settings.small
    with seeded(0):
        model = nn.Sequential(
            nn.Linear(20, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, 4)
        )
        x, y = torch.randn(256, 20), torch.randint(0, 4, (256,))
    _train(model, x, y, 100, 1e-2)
    model.double()
    data = x.double(), y
    say(f"small network, {name}: trace")
    with Problem(model, data, batch=256) as problem:
        products = Products(problem)
        full, gauss = products.dense(), Products(problem, "ggn").dense()
        begin = time.process_time()
        exact = exact_trace(Products(problem, "ggn", "recompute"), 10)
        spent = time.process_time() - begin
        begin = time.process_time()
        for _ in range(20):
            products(full[0])
        each = (time.process_time() - begin) / 20
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, on loading its forward derivatives
            known, _ = directions_of(problem, symmetry(model, data, mode="running").groups)
    assert exact is not None
    part = KnownPart(lambda v: gauss @ v, exact)
    left = 60 - math.ceil(spent / each)
    return {
        "activation": name, "parameters": problem.dimension, "exact_costs": spent / each,
        "trace": _trace(full, part, max(8, left), settings.seeds),
        "density": _density(gauss, known, model, data, say),
    }  # fmt: skip


def _dual(settings: Settings, norm: bool, say: Say) -> dict[str, Any]:
    """Find the smallest eigenvalue that is not zero from inner products of gradients, and test it by one product."""
    say("condition number of a large network")
    widths = [784, 600, 600, 300] if settings.images else [16, 8, 8, 8]
    layers: list[nn.Module] = []
    with seeded(4):
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), *([nn.BatchNorm1d(outputs)] if norm else []), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(widths[-1], 10))
        samples = 500 if settings.images else 20
        x, y = torch.randn(samples, widths[0]), torch.randint(0, 10, (samples,))
    _train(model, x, y, 5, 1e-3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    begin = time.process_time()
    with Problem(model, (x, y), mode="running", dtype=torch.float64, batch=samples) as problem:
        found = quotient(problem, Directions(problem.point()), matrix="ggn", method="dual")
        cpu = time.process_time() - begin
        products = Products(problem, "ggn")
        rows = gram_of(products)
        assert rows is not None
        shifted = rows.matrix()
        shifted.diagonal().sub_((1 - 1e-9) * found.smallest)
        vector = torch.randn(rows.count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        for _ in range(3):  # inverse iteration
            vector = torch.nn.functional.normalize(torch.linalg.solve(shifted, vector), dim=0)
        leaves = problem.leaves()
        scores = problem.prediction(problem.outputs(leaves, problem.terms[0]))
        root = rows.roots[0].values
        seeds = torch.einsum("nok,nk->no", root, vector.view(len(root), -1))
        pulled = torch.nn.functional.normalize(problem.flat(
            dict(zip(leaves, torch.autograd.grad(scores, list(leaves.values()), seeds), strict=True))
        ), dim=0)  # fmt: skip
        _, residuals = rayleigh(products, pulled[None])
    return {
        "case": "-".join(map(str, [*widths, 10])) + (", BatchNorm" if norm else ""), "parameters": problem.dimension,
        "outputs": samples * 10, "cpu": cpu, "bytes": rows.bytes, "smallest": found.smallest,
        "condition": found.condition, "residual": float(residuals[0] / found.smallest),
        "untouched": all(same_bits(v, before[n]) for n, v in model.state_dict().items()),
    }  # fmt: skip


def _every_symmetry(problem: Problem) -> Directions:
    """Return scales and biases before BatchNorm, and the common shift of all classes."""
    parts = {block.name: block for block in problem.blocks}
    rows = []
    for name in ("0.bias", "3.bias", "6.weight", "6.bias"):
        size = parts[name].shape.numel()
        units = torch.eye(size) if name.startswith(("0", "3")) else torch.eye(size // 4).repeat(1, 4)
        whole = torch.zeros(len(units), problem.dimension, dtype=torch.float64)
        whole[:, parts[name].place] = units.double()
        rows.append(whole)
    return Directions(problem.point(), row_groups(problem, ["0.weight", "3.weight"]), torch.cat(rows))


def _trace(matrix: Tensor, part: KnownPart, products: int, seeds: int) -> dict[str, Any]:
    """Return coverage and errors of the trace at the price of 60 products."""
    truth = float(matrix.trace())
    covered, errors, plain = 0, [], []
    for seed in range(seeds):
        estimate = moments(lambda v: matrix @ v, matrix[0], products=products, part=part, seed=seed).trace
        covered += estimate.low <= truth <= estimate.high
        errors.append(abs(estimate.value - truth) / abs(truth))
        if seed < 50:
            other = moments(lambda v: matrix @ v, matrix[0], products=60, seed=seed).trace
            plain.append(abs(other.value - truth) / abs(truth))
    return {
        "products": products,
        "coverage": covered / seeds,
        "median_error": float(np.median(errors)),
        "hutchinson": float(np.median(plain)),
    }


def _density(matrix: Tensor, known: Directions, model: nn.Module, data: tuple[Tensor, Tensor], say: Say) -> Any:
    """Return Wasserstein distances to the dense spectrum at equal products, of the Gauss-Newton matrix: medians."""
    truth = torch.linalg.eigvalsh(matrix).numpy()
    start = torch.randn(len(matrix), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = eigenpairs(lambda v: matrix @ v, start, largest=min(20, len(matrix) // 20), tolerance=1e-6, keep_basis=True)
    total = pairs.products + 3 * 26
    ours = [
        spectral_density(lambda v: matrix @ v, start, steps=26, probes=3, directions=known, pairs=pairs, seed=seed)
        for seed in range(SEEDS)
    ]
    middle = float(np.median([each.distance(truth) for each in ours]))
    rows = [{"tool": "normscope", "distance": [middle], "zeros": ours[0].zeros}]
    for tool, find in DENSITIES.items():
        say(f"density: {tool}")
        try:
            distances = [find(matrix, model, data, total, truth, seed) for seed in range(SEEDS)]
            rows.append({"tool": tool, "distance": np.median(distances, 0).tolist()})
        except Exception as error:
            rows.append({"tool": tool, "error": _first_line(error)})
    return {"products": total, "true_zeros": int((truth < 1e-10 * truth[-1]).sum()), "rows": rows}


def _eigenthings_density(
    matrix: Tensor, model: nn.Module, data: Any, products: int, truth: np.ndarray, seed: int, runs: int = 10
) -> list[float]:
    """Return the distances of the quadrature and of the curve that hessian-eigenthings gives; 10 runs by default."""
    from hessian_eigenthings import LambdaOperator, spectral_density
    from scipy.stats import wasserstein_distance

    operator = LambdaOperator(lambda v: matrix @ v, len(matrix), dtype=torch.float64)
    found = spectral_density(operator, num_runs=runs, lanczos_steps=products // runs, seed=seed)
    places, masses = found.raw_eigenvalues.flatten().numpy(), found.raw_weights.flatten().numpy()
    curve = np.maximum(found.density.numpy(), 0)
    return [
        float(wasserstein_distance(places, truth, masses)),
        float(wasserstein_distance(found.grid.numpy(), truth, curve)),
    ]


def _curvlinops_density(
    matrix: Tensor, model: nn.Module, data: Any, products: int, truth: np.ndarray, seed: int
) -> list[float]:
    """Return the distance of the curve that curvlinops gives; it is told the ends of the spectrum."""
    from curvlinops import GGNLinearOperator, lanczos_approximate_spectrum
    from scipy.stats import wasserstein_distance

    operator = GGNLinearOperator(model, nn.CrossEntropyLoss(), list(model.parameters()), [data])
    ends = float(truth[0]), float(truth[-1])
    torch.manual_seed(seed)
    grid, curve = lanczos_approximate_spectrum(operator, products // 4, num_repeats=4, boundaries=ends)
    return [float(wasserstein_distance(grid.numpy(), truth, np.maximum(curve.numpy(), 0)))]


DENSITIES: dict[str, Callable[..., list[float]]] = {
    "hessian-eigenthings, 10 runs (its default)": _eigenthings_density,
    "hessian-eigenthings, 3 runs (as ours)": partial(_eigenthings_density, runs=3),
    "hessian-eigenthings, 4 runs": partial(_eigenthings_density, runs=4),
    "curvlinops": _curvlinops_density,
}
