"""Measure the curvature of a loss; an interrupted measurement returns what it has found so far."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.core.errors import InputError
from normscope.core.result import Rows
from normscope.curvature.batch_norm import MODES
from normscope.curvature.cost import plan
from normscope.curvature.density import spectral_density
from normscope.curvature.directions import Directions, directions_of, find_groups, row_groups
from normscope.curvature.outputs import exact_trace
from normscope.curvature.problem import Problem, labelled, limited, takes_labels
from normscope.curvature.products import Products, difference_gap, symmetry_gap
from normscope.curvature.quotient import DENSE, quotient
from normscope.curvature.result import CurvatureResult, Eigenvalue, LayerCurvature
from normscope.curvature.sharpness import average_rise, fisher_rao, stability_threshold, worst_rise
from normscope.curvature.trace import Estimate, KnownPart, moments
from normscope.graph.inputs import check_runs, first_samples, iterate
from normscope.graph.objective import LossFunction
from normscope.graph.weights_validation import check_model
from normscope.graph.wrappers import require_module, unwrap
from normscope.linalg.accumulated import length
from normscope.linalg.thick_restart import FEWEST, USEFUL, Eigenpairs, eigenpairs, rayleigh

#: Relative gap between a product and a difference of gradients above which a message warns.
DIFFERENT = 0.01
#: Parameters up to which the spectrum modulo symmetries is computed by default.
SMALL = 1500
#: A measured residual of this many units in the last place of the largest eigenvalue is the rounding of the products.
ROUNDING = 8.0
#: Matrices that need not vanish along symmetries.
CURVED = ("hessian", "residual")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How to measure curvature.

    Raises:
        InputError: if a number is too small.

    >>> Settings(top=2).top
    2
    """

    mode: str = "batch"  #: what BatchNorm does: ``batch``, ``running`` or ``frozen-batch``
    matrix: str = "hessian"  #: ``hessian``, ``ggn``, ``fisher``, ``empirical-fisher`` or ``residual``
    parameters: str | Sequence[str] | None = None  #: name patterns of the parameters to consider
    top: int = 5  #: how many of the largest eigenvalues
    bottom: int = 1  #: how many of the smallest
    tolerance: float = 1e-5  #: relative residual of an eigenvalue
    max_products: int = 300  #: the most products for eigenvalues
    probes: int = 20  #: products for trace and Frobenius norm; 0 for none
    density: int = 0  #: random vectors for the density; 0 for none
    quotient: bool | None = None  #: compute the spectrum modulo symmetries; by default for small networks
    #: search for the symmetries of the model; or the names of weights whose rows may be rescaled
    symmetry: bool | Sequence[str] = True
    #: time for the search of symmetries: 0 for no search, ``math.inf`` for no limit, as with ``quotient=True``
    symmetry_seconds: float = 30.0
    generators: Tensor | None = None  #: further flat directions, one per row
    modes: bool = False  #: also compare the largest eigenvalue in all three modes
    sharpness: bool = False  #: also measure the sharpness family
    radius: float = 0.05  #: of the balls in which sharpness is measured
    rate: float | None = None  #: the learning rate in use, for the stability threshold
    momentum: float = 0.0  #: the momentum in use
    masks: int = 0  #: fixed dropout masks to average over; 0 switches dropout off
    batch: int = 128  #: samples of a batch
    limit: int | None = None  #: samples to use
    #: compute in this precision instead of the model's own; float32 by default if that is shorter
    dtype: torch.dtype | None = None
    way: str | None = None  #: ``retained``, ``recompute`` or ``linearize``; by default by cost
    seed: int = 0  #: random seed

    def __post_init__(self) -> None:
        least = {"top": 1, "bottom": 0, "max_products": 1, "probes": 0, "density": 0, "tolerance": 0.0, "batch": 1}
        for name, low in (least | ({} if self.limit is None else {"limit": 1})).items():
            if not getattr(self, name) >= low:
                raise InputError(f"Expected {name} to be at least {low:g}, got {getattr(self, name)}.")


def curvature(
    model: nn.Module,
    data: Any,
    *,
    loss: LossFunction | None = None,
    name: str = "",
    progress: Progress | None = None,
    **settings: Any,
) -> CurvatureResult:
    """Measure the curvature of the loss of a model on data, in the mode it is trained in.

    Nothing in the model is changed: weights, buffers, mode, gradients and random generators are as before.

    Args:
        model: the network.
        data: batches with labels: tensors, a dataset, or a loader.
        loss: ``f(outputs, labels)``; by default the model's own, cross-entropy, or the mean squared error.
        name: of the model, for the report.
        progress: called with a line of text at each step.
        settings: fields of :class:`Settings`, such as ``mode="running"``, ``top=10``.

    Returns:
        The result. Numbers that have not converged are marked. After Ctrl-C, what was found until then.

    Raises:
        NormscopeError: a subclass that says what is wrong with the input, or that memory does not suffice.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> found = curvature(model, (torch.eye(2) * 3, torch.zeros(2, 1)), top=1, bottom=0, probes=0)
    >>> round(found.largest[0].value, 4), found.largest[0].converged
    (9.0, True)
    """
    try:
        chosen = Settings(**settings)
    except TypeError as error:
        raise InputError(f"{str(error).partition(' ')[2]}. Known settings: {', '.join(vars(Settings()))}.") from None
    require_module(model)
    model = unwrap(model)[0]
    check_model(model)
    run = _Measurement(model, data, loss, chosen, name or type(model).__name__, progress or (lambda text: None))
    return run.measure()


class _Measurement:
    """The steps of a measurement, each adding fields to the result."""

    def __init__(
        self, model: nn.Module, data: Any, loss: LossFunction | None, settings: Settings, name: str, say: Progress
    ) -> None:
        self.model, self.loss, self.settings, self.name, self.say = model, loss, settings, name, say
        self.say("reading the data")
        self.data = list(limited(iterate(data, model, batch=settings.batch), settings.limit))  # loaders may shuffle
        for part in self.data:
            if loss is None and part.labels is not None and part.labels.shape[:1] != (part.batch,):
                count = len(part.labels) if part.labels.ndim else 1
                raise InputError(f"Expected as many labels as inputs, got {part.batch} inputs and {count} labels.")
        #: Fields of the result.
        self.found: dict[str, Any] = {"mode": settings.mode, "matrix": settings.matrix}
        self.messages: list[str] = []
        self.left_out = 0
        self.tested: tuple[Tensor, Tensor] | None = None

    def measure(self) -> CurvatureResult:
        """Run all steps; Ctrl-C ends them early."""
        s = self.settings
        self._problem(limit=2)  # rejects unsupported arguments
        few = first_samples(next(iterate(self.data, self.model, batch=2)), 2)
        check_runs(self.model, labelled(few) if self.loss is None and takes_labels(self.model, few) else few)
        self.groups = self._find_groups()
        with self._problem() as problem:
            own = next(self.model.parameters()).dtype
            if s.dtype is None and problem.dtype != own:
                self.messages.append(f"The weights are {str(own)[6:]}; curvature is computed in float32.")
            self.say("estimating memory")
            wanted = s.top + s.bottom
            vectors = (3 * wanted + FEWEST, 3 * wanted + USEFUL)  # a basis, and the eigenvectors themselves
            self.plan = plan(problem, 4 * wanted + s.probes + 30 * s.density, vectors, s.way)
            self._begin(problem)
            steps = (self._eigenpairs, self._checks, self._moments, self._density, self._sphere, self._sharpness)
            stopped = _interrupted(steps)
            products = self.products
            cost = {"products": products.count, "way": products.way, "bytes": self.plan.bytes, "free": self.plan.free}
            self.found["cost"] = cost
        stopped = stopped or _interrupted((self._difference, self._quotient, self._modes))
        if stopped:
            self.messages.append("Stopped by the user; missing values were not computed.")
        return CurvatureResult(**self.found, stopped=stopped, messages=tuple(self.messages))

    def _problem(self, **changes: Any) -> Problem:
        names = ("mode", "parameters", "masks", "batch", "limit", "dtype", "seed")
        arguments: dict[str, Any] = {name: getattr(self.settings, name) for name in names}
        return Problem(self.model, self.data, self.loss, **(arguments | changes))

    def _find_groups(self) -> tuple[Any, ...] | None:
        """Return the symmetry groups of the model in this mode, or None with a message if the search failed."""
        s = self.settings
        if s.symmetry is not True or s.mode == "frozen-batch":  # none are known for frozen statistics
            return ()
        seconds = math.inf if s.quotient else s.symmetry_seconds
        kind = "auto" if self.loss is None else "none"
        return find_groups(self.model, self.data, s.mode, kind, seconds, self.say, self.messages, seed=s.seed)

    def _directions(self, problem: Problem) -> Directions:
        s = self.settings
        if not isinstance(s.symmetry, bool):
            return Directions(problem.point(), row_groups(problem, s.symmetry), s.generators)
        found, self.left_out = directions_of(problem, self.groups or (), s.generators)
        return found

    def _begin(self, problem: Problem) -> None:
        self.say("gradient")
        value, self.gradient = problem.gradient()
        self.products = Products(problem, self.settings.matrix, self.plan.way)
        self.known = self._directions(problem)
        self.found |= {
            "model": {"name": self.name, "class": type(self.model).__name__, "parameters": problem.dimension},
            "data": {
                "samples": problem.samples, "batches": len(problem.terms), "dropout_masks": self.settings.masks,
            },
            "loss": value,
            "gradient_norm": length(self.gradient),
            "symmetry": {
                "explained": self.known.count, "scale_groups": self.known.scales, "left_out": self.left_out,
            },
        }  # fmt: skip

    def _eigenpairs(self) -> None:
        """Add the largest and smallest eigenvalues, and the spurious curvature due to scale symmetry."""
        s, products = self.settings, self.products
        top = max(1, min(s.top, products.dimension))

        def told(count: int, values: Any) -> None:
            self.say(f"eigenvalues: {count} products, largest {values[0]:.6g}")

        pairs = eigenpairs(
            products, products.problem.random(s.seed + 100), largest=top,
            smallest=min(s.bottom, products.dimension - top), tolerance=s.tolerance, max_products=s.max_products,
            size=self.plan.vectors - s.top - s.bottom, keep_basis=True, progress=told,
        )  # fmt: skip
        self.pairs = pairs = pairs if pairs.stopped else verified(products, pairs, s.tolerance)
        rows = [
            Eigenvalue(float(v), float(r), float(e), bool(c))
            for v, r, e, c in zip(pairs.values, pairs.residuals, pairs.errors, pairs.converged, strict=True)
        ]
        missing = sum(not row.converged for row in rows)
        if missing:
            self.messages.append(
                f"{missing} of {len(rows)} eigenvalues have not converged after {pairs.products} products; "
                "they are marked. Raise --max-products or --tolerance, or compute in float64 (--double)."
            )
        self.found |= {"largest": tuple(rows[:top]), "smallest": tuple(reversed(rows[top:]))}
        if self.known.scales and s.matrix == "hessian":
            self.found["symmetry"]["spurious"] = _spurious(self.gradient, self.known)
        if pairs.stopped:
            raise KeyboardInterrupt

    def _checks(self) -> None:
        """Test the products for symmetry, and keep one for a difference of gradients."""
        self.say("testing the products")
        gap = symmetry_gap(self.products, self.settings.seed)
        if gap > math.sqrt(torch.finfo(self.products.problem.dtype).eps):
            self.messages.append(
                f"The products are not symmetric (relative gap {gap:.1e}): an operation of the model has a wrong "
                "second derivative. Do not rely on these numbers."
            )
        if self.settings.matrix == "hessian" and len(self.pairs.vectors):
            self.tested = (self.pairs.vectors[0], self.products(self.pairs.vectors[0]))
        self.found["checks"] = {"symmetry": gap}

    def _difference(self) -> None:
        """Compare a product with a difference of gradients in float64."""
        if self.tested is None:
            return
        try:
            with self._problem(dtype=torch.float64) as problem:
                gap = difference_gap(problem, *self.tested)
        except RuntimeError:  # the model computes in one precision only
            return
        if gap > DIFFERENT:
            self.messages.append(
                "A difference of gradients along the largest eigenvector differs from the product by "
                f"{gap:.0%}: the loss has kinks here, or an operation of the model has a wrong second "
                "derivative."
            )
        self.found["checks"]["difference"] = gap

    def _moments(self) -> None:
        """Add trace, Frobenius norm and stable rank."""
        s, problem = self.settings, self.products.problem
        if not s.probes:
            return
        self.say("trace")
        exact, part = self._known_trace()
        found = moments(
            self.products, problem.point(), products=s.probes, seed=s.seed,
            deflate=self.pairs, part=part, blocks={block.name: block.place for block in problem.blocks},
        )  # fmt: skip
        trace, parts = found.trace, found.layers
        if exact is not None:
            trace = Estimate.of(sum(exact.values()), np.zeros(0))
            parts = {name: Estimate.of(value, np.zeros(0)) for name, value in exact.items()}
        self.found |= {
            "trace": asdict(trace),
            "frobenius": found.frobenius,
            "stable_rank": found.stable_rank(max(abs(float(v)) for v in self.pairs.values)),
            "layers": Rows(
                LayerCurvature(block.name, block.shape.numel(), e.value, e.low, e.high)
                for block in problem.blocks
                for e in (parts[block.name],)
            ),
        }

    def _known_trace(self) -> tuple[dict[str, float] | None, KnownPart | None]:
        """Return the exact trace of a Gauss-Newton matrix or, for a Hessian, that matrix as a part with known trace."""
        s, problem = self.settings, self.products.problem
        if s.matrix not in ("hessian", "ggn", "fisher"):
            return None, None
        try:
            found = exact_trace(Products(problem, "ggn", "recompute"), s.probes)
        except InputError:  # the model's own loss, which is not a function of its outputs
            return None, None
        if found is None or s.matrix != "hessian":
            return found, None
        fits = self.products.way != "recompute" and 2 * self.plan.bytes <= self.plan.free
        return None, KnownPart(Products(problem, "ggn", "retained" if fits else "recompute"), found)

    def _density(self) -> None:
        s = self.settings
        if not s.density:
            return
        self.say("density")
        flat = None if s.matrix in CURVED else self.known  # off stationary points the Hessian does not vanish there
        found = spectral_density(
            self.products, self.products.problem.point(), probes=s.density, directions=flat, pairs=self.pairs,
            seed=s.seed,
        )  # fmt: skip
        scale = max(abs(float(v)) for v in self.pairs.values)
        places, masses = found.atoms()
        self.found["density"] = {
            "zeros": found.zeros,
            "quantiles": {str(q): found.quantile(q) for q in (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)},
            "negative": found.share(-math.inf, -1e-6 * scale),
            "flat": found.share(-1e-6 * scale, 1e-6 * scale),
            "places": places.tolist(),
            "masses": masses.tolist(),
        }

    def _sphere(self) -> None:
        """Add the largest eigenvalue in coordinates that do not change when scale groups are rescaled."""
        s, known = self.settings, self.known
        if not known.count:
            return
        self.say("eigenvalues modulo symmetries")
        found = eigenpairs(
            lambda vector: known.on_sphere(self.products(known.on_sphere(vector))),
            self.products.problem.random(s.seed + 200), largest=1, smallest=min(1, s.bottom),
            tolerance=max(1e-4, s.tolerance), max_products=s.max_products, project=known.project,
        )  # fmt: skip
        ends = {"largest": 0, "smallest": -1} if len(found.values) > 1 else {"largest": 0}
        for end, place in ends.items():
            self.found["symmetry"][f"{end}_on_sphere"] = float(found.values[place])
            self.found["symmetry"][f"{end}_on_sphere_converged"] = bool(found.converged[place])

    def _sharpness(self) -> None:
        s, problem, top = self.settings, self.products.problem, float(self.pairs.values[0])
        if not s.sharpness:
            return
        self.say("sharpness")
        measures: dict[str, Any] = {"raw": top, "spherical": self.found["symmetry"].get("largest_on_sphere")}
        predicted = s.radius * length(self.gradient.double()) + 0.5 * s.radius**2 * top
        measures["sam"] = worst_rise(problem, s.radius)
        measures["sam_quadratic"] = predicted if s.matrix == "hessian" else None
        measures["adaptive"] = worst_rise(problem, s.radius, kind="elementwise")
        spread = s.radius / problem.dimension**0.5  # noise whose length is about rho
        measures["average"] = asdict(average_rise(problem, spread, samples=10, seed=s.seed))
        if "trace" in self.found and s.matrix == "hessian":
            measures["average_quadratic"] = 0.5 * spread**2 * self.found["trace"]["value"]
        if s.matrix in ("ggn", "fisher"):
            measures["fisher_rao"] = fisher_rao(self.products(problem.point()), problem.point())
        if s.rate is not None:
            threshold = stability_threshold(s.rate, momentum=s.momentum)
            measures |= {"threshold": threshold, "largest over threshold": top / threshold}
        self.found["sharpness"] = measures

    def _quotient(self) -> None:
        """Add the spectrum modulo symmetries, in float64."""
        s, size = self.settings, self.found["model"]["parameters"]
        unasked = size <= min(SMALL, DENSE) and s.matrix not in CURVED and self.groups is not None
        if not (unasked if s.quotient is None else s.quotient):
            return
        self.say("spectrum modulo symmetries")
        with self._problem(dtype=torch.float64) as problem:
            found = quotient(problem, self._directions(problem), matrix=s.matrix)
        self.found["quotient"] = {k: v for k, v in asdict(found).items() if k != "spectrum"}

    def _modes(self) -> None:
        """Compare the largest eigenvalue in all modes of BatchNorm."""
        s = self.settings
        found: dict[str, Any] = {}
        for mode in MODES if s.modes else ():
            if mode == s.mode and self.found["largest"]:
                found[mode] = {"largest": self.found["largest"][0].value, "loss": self.found["loss"]}
                continue
            self.say(f"largest eigenvalue in {mode} mode")
            with self._problem(mode=mode) as problem:
                products = Products(problem, s.matrix, self.products.way)
                pairs = eigenpairs(products, problem.random(s.seed + 100), largest=1, tolerance=1e-3, max_products=100)
                found[mode] = {"largest": float(pairs.values[0]), "loss": problem.value()}
        self.found["modes"] = found


def _interrupted(steps: Iterable[Callable[[], None]]) -> bool:
    try:
        for step in steps:
            step()
    except KeyboardInterrupt:
        return True
    return False


def verified(products: Products, pairs: Eigenpairs, tolerance: float) -> Eigenpairs:
    """Return eigenpairs with residuals measured by one more product each.

    The recurrence does not see the rounding of the products themselves, which is what limits small eigenvalues in
    float32; a pair whose measured residual is too large is not marked as converged.

    Args:
        products: the matrix.
        pairs: the eigenpairs found by the recurrence.
        tolerance: the requested relative residual.
    """
    try:
        values, measured = rayleigh(products, pairs.vectors)
    except KeyboardInterrupt:
        return replace(pairs, stopped=True)
    floor = ROUNDING * torch.finfo(pairs.vectors.dtype).eps * np.abs(pairs.values).max(initial=0.0)
    accurate = pairs.converged & (measured <= 2 * np.maximum(tolerance * np.abs(values), floor))
    worst = np.maximum(pairs.residuals, measured)
    errors = np.minimum(worst, pairs.errors * (worst / np.maximum(pairs.residuals, 1e-300)) ** 2)
    return replace(pairs, residuals=worst, errors=errors, converged=accurate)


def _spurious(gradient: Tensor, known: Directions) -> float:
    r"""Return the largest :math:`\|g_i\|/\|w_i\|` over scale groups: curvature of the parametrization alone."""
    squares = known.sums(torch.where(known.inside, gradient.double().square(), 0.0))
    return float(torch.where(known.inside, squares.sqrt() / known.lengths, 0.0).max())
