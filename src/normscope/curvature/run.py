"""One measurement of curvature, from products to a result; stopping it keeps what is known."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.core.errors import InputError
from normscope.core.result import Rows
from normscope.curvature.batch_norm import MODES
from normscope.curvature.cost import Plan, plan
from normscope.curvature.density import spectral_density
from normscope.curvature.directions import Directions, row_groups
from normscope.curvature.outputs import exact_trace
from normscope.curvature.problem import Problem, labelled, picked, read_once, takes_labels
from normscope.curvature.products import Products
from normscope.curvature.quotient import DENSE, quotient
from normscope.curvature.result import CurvatureResult, Eigenvalue, LayerCurvature
from normscope.curvature.self_test import difference_gap, random_vector, symmetry_gap
from normscope.curvature.settings import Settings
from normscope.curvature.sharpness import average_rise, fisher_rao, stability_threshold, worst_rise
from normscope.curvature.symmetries import directions_of, find_groups
from normscope.curvature.trace import Estimate, Part, moments
from normscope.graph.inputs import check_runs, iterate
from normscope.graph.objective import LossFunction
from normscope.graph.signature import bare
from normscope.graph.weights_validation import check_model
from normscope.linalg.accumulated import length
from normscope.linalg.thick_restart import FEWEST, USEFUL, Eigenpairs, eigenpairs, rayleigh

#: A relative gap between a product and a difference of gradients above this is told as a warning.
DIFFERENT = 0.01
#: Parameters up to which the spectrum modulo symmetries is computed unasked.
SMALL = 1500
#: A measured residual of this many units in the last place of the largest eigenvalue is the rounding of the products.
ROUNDING = 8.0

Progress = Callable[[str], None]


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

    Nothing of the model is changed: weights, buffers, mode, gradients and random generators are as before.

    Args:
        model: the network.
        data: batches with labels: tensors, a dataset, or a loader.
        loss: ``f(outputs, labels)``; by default the model's own, cross-entropy, or the mean squared error.
        name: of the model, for the report.
        progress: called with a line of text at each step.
        settings: fields of :class:`Settings`, such as ``mode="running"``, ``top=10``.

    Returns:
        The result. Numbers that have not converged are marked. After Ctrl-C, what was known by then.

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
    if not isinstance(model, nn.Module):
        raise InputError(f"Expected a Module, got {type(model).__name__}.")
    model = bare(model)
    check_model(model)
    run = _Run(model, data, loss, chosen, name or type(model).__name__, progress or (lambda text: None))
    return run.measure()


@dataclass
class _Run:
    """The steps of a measurement, each adding to what is known."""

    model: nn.Module
    data: Any
    loss: LossFunction | None
    settings: Settings
    name: str
    say: Progress
    messages: list[str] = field(default_factory=list)
    tested: tuple[Tensor, Tensor] | None = None
    groups: tuple[Any, ...] = ()
    searched: bool = True
    left_out: int = 0
    basis: int = 0
    room: bool = False

    def measure(self) -> CurvatureResult:
        """Go through the steps; a stop ends them early."""
        s = self.settings
        self.say("reading the data")
        self.data = read_once(self.data, self.model, s.batch, s.limit)
        s.problem(self.model, self.data, self.loss, limit=2)  # refuses what it cannot take
        few = picked(next(iterate(self.data, self.model, batch=2)), slice(2))
        check_runs(self.model, labelled(few) if self.loss is None and takes_labels(self.model, few) else few)
        self.groups = self._find_groups()
        with s.problem(self.model, self.data, self.loss) as problem:
            own = next(self.model.parameters()).dtype
            if s.dtype is None and problem.dtype != own:
                self.messages.append(f"The weights are {str(own)[6:]}; curvature is computed in float32.")
            self.say("estimating memory")
            planned = self._plan(problem)
            self.room = 2 * planned.bytes <= planned.free
            self.say("gradient")
            value, gradient = problem.gradient()
            products = Products(problem, s.matrix, planned.way)
            known = self._directions(problem)
            result = self._begin(problem, value, gradient, known)
            stopped = False
            try:
                pairs = self._eigenpairs(products, known)
                result = self._with_pairs(result, pairs, products, gradient, known)
                stopped = pairs.stopped
                if not stopped:
                    for step in (self._checks, self._moments, self._density, self._sphere, self._sharpness):
                        result = step(result, products, pairs, known)
            except KeyboardInterrupt:
                stopped = True
            cost = {"products": products.count, "way": products.way, "bytes": planned.bytes, "free": planned.free}
            result = replace(result, cost=cost)
        if not stopped:
            try:
                result = self._difference(result)
                result = self._quotient(result)
                result = self._modes(result)
            except KeyboardInterrupt:
                stopped = True
        if stopped:
            self.messages.append("Stopped by the user; missing values were not computed.")
        return replace(result, stopped=stopped, messages=tuple(self.messages))

    def _plan(self, problem: Problem) -> Plan:
        """Choose the way of making products, or refuse."""
        s = self.settings
        wanted = s.top + s.bottom
        vectors = (3 * wanted + FEWEST, 3 * wanted + USEFUL)  # a basis, and the eigenvectors themselves
        planned = plan(problem, 4 * wanted + s.probes + 30 * s.density, vectors, s.way)
        self.basis = planned.vectors - wanted
        return planned

    def _find_groups(self) -> tuple[Any, ...]:
        """Return the symmetry groups of the model in this mode; where they are not found, say so."""
        s = self.settings
        if s.symmetry is not True or s.mode == "frozen-batch":  # of frozen statistics none is known
            return ()
        seconds = math.inf if s.quotient else s.symmetry_seconds
        kind = "auto" if self.loss is None else "none"
        found = find_groups(self.model, self.data, s.mode, kind, seconds, self.say, self.messages, seed=s.seed)
        self.searched = found is not None
        return found or ()

    def _directions(self, problem: Problem) -> Directions:
        """Return the known flat directions at the point."""
        s = self.settings
        if not isinstance(s.symmetry, bool):
            return Directions(problem.point(), row_groups(problem, s.symmetry), s.generators)
        found, self.left_out = directions_of(problem, self.groups, s.generators)
        return found

    def _begin(self, problem: Problem, value: float, gradient: Tensor, known: Directions) -> CurvatureResult:
        """Return a result that holds what is known before the first product."""
        s = self.settings
        symmetry = {
            "explained": known.count,
            "scale_groups": known.scales,
            "left_out": self.left_out,
        }
        return CurvatureResult(
            model={"name": self.name, "class": type(self.model).__name__, "parameters": problem.dimension},
            data={"samples": problem.samples, "batches": len(problem.terms), "dropout_masks": s.masks},
            mode=s.mode,
            matrix=s.matrix,
            loss=value,
            gradient_norm=length(gradient),
            symmetry=symmetry,
        )

    def _eigenpairs(self, products: Products, known: Directions) -> Eigenpairs:
        """Search for eigenpairs at both ends."""
        s = self.settings
        top = max(1, min(s.top, products.dimension))
        bottom = min(s.bottom, products.dimension - top)

        def told(count: int, values: Any) -> None:
            self.say(f"eigenvalues: {count} products, largest {values[0]:.6g}")

        found = eigenpairs(
            products, random_vector(products.problem, s.seed + 100), largest=top, smallest=bottom,
            tolerance=s.tolerance, max_products=s.max_products, size=self.basis, keep_basis=True, told=told,
        )  # fmt: skip
        return found if found.stopped else verified(products, found, s.tolerance)

    def _with_pairs(
        self, result: CurvatureResult, pairs: Eigenpairs, products: Products, gradient: Tensor, known: Directions
    ) -> CurvatureResult:
        """Add the eigenvalues, and what symmetry makes of the smallest."""
        rows = [
            Eigenvalue(float(v), float(r), float(e), bool(c))
            for v, r, e, c in zip(pairs.values, pairs.residuals, pairs.errors, pairs.converged, strict=True)
        ]
        top = min(max(1, self.settings.top), len(rows))
        missing = sum(not row.converged for row in rows)
        if missing:
            self.messages.append(
                f"{missing} of {len(rows)} eigenvalues have not converged after {pairs.products} products; "
                "they are marked. Raise --max-products or --tolerance, or compute in float64 (--double)."
            )
        spurious = _spurious(gradient, known) if known.scales and result.matrix == "hessian" else None
        symmetry = result.symmetry | ({} if spurious is None else {"spurious": spurious})
        return replace(result, largest=tuple(rows[:top]), smallest=tuple(reversed(rows[top:])), symmetry=symmetry)

    def _checks(self, result: CurvatureResult, products: Products, pairs: Eigenpairs, known: Any) -> CurvatureResult:
        """Test the products for symmetry, and keep one for a difference of gradients."""
        self.say("testing the products")
        gap = symmetry_gap(products, self.settings.seed)
        if gap > math.sqrt(torch.finfo(products.problem.dtype).eps):
            self.messages.append(
                f"The products are not symmetric (relative gap {gap:.1e}): an operation of the model has a wrong "
                "second derivative. Do not rely on these numbers."
            )
        if result.matrix == "hessian" and len(pairs.vectors):
            self.tested = (pairs.vectors[0], products(pairs.vectors[0]))
        return replace(result, checks={"symmetry": gap})

    def _difference(self, result: CurvatureResult) -> CurvatureResult:
        """Compare a product with a difference of gradients in float64."""
        if self.tested is None:
            return result
        try:
            with self.settings.problem(self.model, self.data, self.loss, dtype=torch.float64) as problem:
                gap = difference_gap(problem, *self.tested)
        except RuntimeError:  # the model computes in one precision only
            return result
        if gap > DIFFERENT:
            self.messages.append(
                "A difference of gradients along the largest eigenvector differs from the product by "
                f"{gap:.0%}: the loss has kinks here, or an operation of the model has a wrong second "
                "derivative."
            )
        return replace(result, checks=result.checks | {"difference": gap})

    def _moments(self, result: CurvatureResult, products: Products, pairs: Eigenpairs, known: Any) -> CurvatureResult:
        """Add trace, Frobenius norm and stable rank."""
        if not self.settings.probes:
            return result
        self.say("trace")
        s, problem = self.settings, products.problem
        exact, part = self._known_trace(products)
        found = moments(
            products, problem.point(), products=s.probes, seed=s.seed,
            deflate=pairs, part=part, blocks={block.name: block.place for block in problem.blocks},
        )  # fmt: skip
        trace, parts = found.trace, found.layers
        if exact is not None:
            trace = Estimate.of(sum(exact.values()), np.zeros(0))
            parts = {name: Estimate.of(value, np.zeros(0)) for name, value in exact.items()}
        layers = Rows(
            LayerCurvature(block.name, block.shape.numel(), e.value, e.low, e.high)
            for block in problem.blocks
            for e in (parts[block.name],)
        )
        norm = max(abs(float(v)) for v in pairs.values)
        return replace(
            result, trace=asdict(trace), frobenius=found.frobenius, stable_rank=found.stable_rank(norm), layers=layers
        )

    def _known_trace(self, products: Products) -> tuple[dict[str, float] | None, Part | None]:
        """Return the trace if it is that of a Gauss-Newton matrix known exactly, or this matrix as a part of it."""
        s, problem = self.settings, products.problem
        if s.matrix not in ("hessian", "ggn", "fisher"):
            return None, None
        try:
            found = exact_trace(Products(problem, "ggn", "recompute"), s.probes)
        except InputError:  # the model's own loss, which is no function of its outputs
            return None, None
        if found is None or s.matrix != "hessian":
            return found, None
        way = "retained" if products.way != "recompute" and self.room else "recompute"
        return None, Part(Products(problem, "ggn", way), found)

    def _density(
        self, result: CurvatureResult, products: Products, pairs: Eigenpairs, known: Directions
    ) -> CurvatureResult:
        """Add the density of eigenvalues."""
        if not self.settings.density:
            return result
        self.say("density")
        vanishing = result.matrix not in ("hessian", "residual")
        flat = known if vanishing else None  # off stationary points the Hessian does not vanish there
        found = spectral_density(
            products, products.problem.point(), probes=self.settings.density, directions=flat, pairs=pairs,
            seed=self.settings.seed,
        )  # fmt: skip
        scale = max(abs(float(v)) for v in pairs.values)
        places, masses = found.atoms()
        return replace(result, density={
            "zeros": found.zeros,
            "quantiles": {str(q): found.quantile(q) for q in (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)},
            "negative": found.share(-math.inf, -1e-6 * scale),
            "flat": found.share(-1e-6 * scale, 1e-6 * scale),
            "places": places.tolist(),
            "masses": masses.tolist(),
        })  # fmt: skip

    def _sphere(
        self, result: CurvatureResult, products: Products, pairs: Eigenpairs, known: Directions
    ) -> CurvatureResult:
        """Add the largest eigenvalue in coordinates that rescaling of scale groups leaves alone."""
        if not known.count:
            return result
        self.say("eigenvalues modulo symmetries")

        def apply(vector: Tensor) -> Tensor:
            return known.on_sphere(products(known.on_sphere(vector)))

        s = self.settings
        found = eigenpairs(
            apply, random_vector(products.problem, s.seed + 200), largest=1, smallest=min(1, s.bottom),
            tolerance=max(1e-4, s.tolerance), max_products=s.max_products, project=known.project,
        )  # fmt: skip
        added = {"largest_on_sphere": float(found.values[0]), "largest_on_sphere_converged": bool(found.converged[0])}
        if len(found.values) > 1:
            added["smallest_on_sphere"] = float(found.values[-1])
            added["smallest_on_sphere_converged"] = bool(found.converged[-1])
        return replace(result, symmetry=result.symmetry | added)

    def _sharpness(self, result: CurvatureResult, products: Products, pairs: Eigenpairs, known: Any) -> CurvatureResult:
        """Add the sharpness family."""
        s, problem = self.settings, products.problem
        if not s.sharpness:
            return result
        self.say("sharpness")
        top = float(pairs.values[0])
        measures: dict[str, Any] = {"raw": top, "spherical": result.symmetry.get("largest_on_sphere")}
        worst = worst_rise(problem, s.radius, eigenvalue=top if result.matrix == "hessian" else None)
        measures |= {"sam": worst.rise, "sam_quadratic": worst.quadratic}
        measures["adaptive"] = worst_rise(problem, s.radius, kind="elementwise").rise
        spread = s.radius / problem.dimension**0.5  # noise whose length is about rho
        measures["average"] = asdict(average_rise(problem, spread, samples=10, seed=s.seed))
        if result.trace is not None and result.matrix == "hessian":
            measures["average_quadratic"] = 0.5 * spread**2 * result.trace["value"]
        if result.matrix in ("ggn", "fisher"):
            measures["fisher_rao"] = fisher_rao(products(problem.point()), problem.point())
        if s.rate is not None:
            threshold = stability_threshold(s.rate, momentum=s.momentum)
            measures |= {"threshold": threshold, "largest over threshold": top / threshold}
        return replace(result, sharpness=measures)

    def _quotient(self, result: CurvatureResult) -> CurvatureResult:
        """Add the spectrum modulo symmetries, in float64."""
        s, curved = self.settings, ("hessian", "residual")
        size = result.model["parameters"]
        unasked = size <= min(SMALL, DENSE) and result.matrix not in curved and self.searched
        if not (unasked if s.quotient is None else s.quotient):
            return result
        self.say("spectrum modulo symmetries")
        with s.problem(self.model, self.data, self.loss, dtype=torch.float64) as problem:
            found = quotient(problem, self._directions(problem), matrix=s.matrix)
        return replace(result, quotient={k: v for k, v in asdict(found).items() if k != "spectrum"})

    def _modes(self, result: CurvatureResult) -> CurvatureResult:
        """Compare the largest eigenvalue in all modes of BatchNorm."""
        s = self.settings
        if not s.modes:
            return result
        found: dict[str, Any] = {}
        for mode in MODES:
            if mode == s.mode and result.largest:
                found[mode] = {"largest": result.largest[0].value, "loss": result.loss}
                continue
            self.say(f"largest eigenvalue in {mode} mode")
            with s.problem(self.model, self.data, self.loss, mode=mode) as problem:
                products = Products(problem, s.matrix, result.cost.get("way", "retained"))
                pairs = eigenpairs(
                    products, random_vector(problem, s.seed + 100), largest=1, tolerance=1e-3, max_products=100
                )
                found[mode] = {"largest": float(pairs.values[0]), "loss": problem.value()}
        return replace(result, modes=found)


def verified(products: Products, pairs: Eigenpairs, tolerance: float) -> Eigenpairs:
    """Return eigenpairs with residuals measured by one more product each.

    The recurrence does not see the rounding of the products themselves, which is what limits small eigenvalues in
    float32; a pair whose measured residual is too large is not called converged.

    Args:
        products: the matrix.
        pairs: what the recurrence found.
        tolerance: the relative residual that was asked for.
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
    count = int(known.groups.max()) + 1
    squares = torch.zeros(count, dtype=torch.float64, device=gradient.device)
    inside = known.inside
    squares.index_add_(0, known.groups, torch.where(inside, gradient.double().square(), 0.0))
    ratios = torch.where(inside, squares.sqrt()[known.groups] / known.lengths, 0.0)
    return float(ratios.max())
