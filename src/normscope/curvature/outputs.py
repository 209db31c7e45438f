"""The Gauss-Newton matrix from its factor: rows of :math:`S^{1/2} J`, and the exact trace computed from them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normscope.core.environment import quiet_vmap
from normscope.core.errors import InputError
from normscope.curvature.problem import LossTerm, Problem
from normscope.curvature.products import Products
from normscope.graph.inputs import ModelInputs, picked
from normscope.operators.linear_map import pulled

#: Outputs differentiated at once.
TOGETHER = 64
#: Largest number of entries of the rows of samples that are run at once.
MOST = 2**24
#: Tolerance for outputs of a sample run without its batch, in square roots of the unit roundoff.
APART = 0.05


def exact_trace(products: Products, most: int) -> dict[str, float] | None:
    r"""Return the trace of the block of every parameter of the Gauss-Newton matrix, exactly, from samples run alone.

    .. math:: tr\, J^T S J = \sum_n \sum_c \|(S_n^{1/2} J_n)_c\|^2

    where :math:`J_n` is the Jacobian of the outputs of sample ``n`` and :math:`S_n` the Hessian of the loss in them: as
    much work as one gradient per output.

    Args:
        products: of the Gauss-Newton matrix.
        most: how many outputs a sample may have.

    Returns:
        None where samples depend on each other (BatchNorm in batch mode, dropout, contrastive losses), where they
        have more outputs, or where the loss is not convex in the outputs.
    """
    problem = products.problem
    found = dict.fromkeys((block.name for block in problem.blocks), 0.0)
    for term in problem.terms:
        root = root_of(products, term, most)
        if root is None:
            return None
        try:
            for rows in _alone(problem, term, root):
                for block in problem.blocks:
                    square = torch.linalg.vector_norm(rows[:, block.place], dtype=torch.float64).square()
                    found[block.name] += term.share * float(square)
        except _CoupledError:
            return None
    return found


def rows_of(problem: Problem, term: LossTerm, root: OutputHessianRoot, out: Tensor) -> None:
    r"""Write the rows of :math:`S^{1/2} J` of one term, those of one sample together.

    Args:
        problem: the loss, or a part of its parameters.
        term: one of its terms.
        root: of the Hessian of the loss in the outputs.
        out: where to write them.
    """
    for pieces in (_alone(problem, term, root), _together(problem, term, root)):
        at = 0
        with contextlib.suppress(_CoupledError):
            for piece in pieces:
                out[at : at + len(piece)] = piece
                at += len(piece)
            return


class _CoupledError(Exception):
    """The outputs of a sample depend on the other samples of its batch."""


@dataclass(frozen=True)
class OutputHessianRoot:
    """A square root of the Hessian of the loss in the outputs, for each sample."""

    scores: Tensor  #: the outputs, without a graph
    values: Tensor  #: roots, shape (samples, outputs, rank): columns that vanish for every sample are left out

    @property
    def count(self) -> int:
        """Return the number of rows of all samples."""
        return self.values.shape[0] * self.values.shape[2]


def root_of(products: Products, term: LossTerm, most: int | None = None) -> OutputHessianRoot | None:
    """Return the square root of the Hessian of the loss in the outputs of one term.

    Args:
        products: of the Gauss-Newton matrix.
        term: of its problem.
        most: how many outputs a sample may have.

    Returns:
        None if outputs are not one row per sample or more than allowed, or if the loss is not a sum over samples or
        not convex in their outputs.
    """
    problem = products.problem
    with torch.no_grad():
        outputs = problem.outputs(problem.leaves(), term)
    with torch.enable_grad():
        scores = problem.prediction(outputs).detach()
        if scores.ndim == 0 or len(scores) != term.inputs.batch:
            return None
        samples, size = len(scores), scores[0].numel()
        if most is not None and size > most:
            return None
        middle = products.middle(term, outputs, problem.prediction(outputs))
        columns = []
        for place in range(size):
            unit = torch.zeros(samples, size, dtype=scores.dtype, device=scores.device)
            unit[:, place] = 1.0
            columns.append(middle(unit.reshape(scores.shape)).reshape(samples, size))
        generator = torch.Generator().manual_seed(0)
        signs = (2.0 * torch.randint(0, 2, (samples,), generator=generator) - 1.0).to(scores)
        random = torch.randn(samples, size, generator=generator).to(scores)
        moved = middle((signs[:, None] * random).reshape(scores.shape)).reshape(samples, size)
    blocks = torch.stack(columns, 2)
    values, vectors = torch.linalg.eigh((blocks + blocks.mT) / 2)
    scale = float(values.abs().max())
    noise = 100 * torch.finfo(scores.dtype).eps * max(scale, torch.finfo(scores.dtype).tiny)
    expected = signs[:, None] * torch.einsum("nij,nj->ni", blocks, random)
    if float((moved - expected).abs().max()) > 10 * size * noise or float(values.min()) < -noise:
        return None
    used = (values > noise).any(0)
    used[-1] = True  # at least one
    roots = vectors[:, :, used] * values[:, None, used].clamp(min=0).sqrt()
    return OutputHessianRoot(scores, roots)


def _alone(problem: Problem, term: LossTerm, root: OutputHessianRoot) -> Iterator[Tensor]:
    """Yield the rows of samples, each run without its batch: many at once in small networks.

    Raises:
        _CoupledError: if a sample then has different outputs.
    """
    allowed = APART * torch.finfo(root.scores.dtype).eps ** 0.5 * max(1.0, float(root.scores.abs().max()))
    many = MOST // (problem.dimension * root.values.shape[2])
    at = 0
    while at < len(root.values):
        place = slice(at, at + max(1, many))
        try:
            scores, rows = (_mapped if many > 4 else _one)(problem, term, root, place)
        except (RuntimeError, ValueError, NotImplementedError, InputError):
            if many <= 4:  # BatchNorm rejects a batch of one, and a view may reject its size
                raise _CoupledError from None
            many = 1
            continue
        if scores.shape != root.scores[place].shape or float((scores - root.scores[place]).abs().max()) > allowed:
            raise _CoupledError
        yield rows
        at += len(scores)


def _one(problem: Problem, term: LossTerm, root: OutputHessianRoot, place: slice) -> tuple[Tensor, Tensor]:
    leaves = problem.leaves()
    scores = problem.prediction(problem.outputs(leaves, replace(term, inputs=picked(term.inputs, place))))
    seeds = root.values[place.start].mT.reshape(-1, *scores.shape)
    return scores.detach(), torch.cat(pulled(scores, list(leaves.values()), seeds), 1)


def _mapped(problem: Problem, term: LossTerm, root: OutputHessianRoot, place: slice) -> tuple[Tensor, Tensor]:
    """Return outputs and rows of many samples by ``torch.func.vmap``."""
    values = {name: leaf.detach() for name, leaf in problem.leaves().items()}
    size, inputs, count = term.inputs.batch, picked(term.inputs, place), len(root.values[place])
    before = [*term.inputs.args, *term.inputs.kwargs.values()]
    given = [*inputs.args, *inputs.kwargs.values()]
    axes = [0 if isinstance(value, Tensor) and value.ndim and len(value) == size else None for value in before]

    def single(root: Tensor, *given: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        ready = [value[None] if axis == 0 else value for value, axis in zip(given, axes, strict=True)]
        positional, named = ready[: len(inputs.args)], ready[len(inputs.args) :]
        one = replace(term, inputs=ModelInputs(tuple(positional), dict(zip(inputs.kwargs, named, strict=True))))

        def scores(parts: Mapping[str, Tensor]) -> Tensor:
            return problem.prediction(problem.outputs(parts, one))

        found, pull, *_ = torch.func.vjp(scores, values)
        parts = torch.func.vmap(pull)(root.mT.reshape(-1, *found.shape))[0]
        return found[0], tuple(parts[block.name] for block in problem.blocks)

    with quiet_vmap():
        found, parts = torch.func.vmap(single, in_dims=(0, *axes))(root.values[place], *given)
    rows = torch.cat([part.detach().reshape(count * root.values.shape[2], -1) for part in parts], 1)
    return found.detach(), rows


def _together(problem: Problem, term: LossTerm, root: OutputHessianRoot) -> Iterator[Tensor]:
    """Yield the rows of a batch whose samples depend on each other."""
    leaves = problem.leaves()
    scores = problem.prediction(problem.outputs(leaves, term))
    samples, size, rank = root.values.shape
    for piece in torch.arange(samples * rank).split(TOGETHER):
        seeds = torch.zeros(len(piece), samples, size, dtype=scores.dtype, device=scores.device)
        for row, place in enumerate(piece.tolist()):
            seeds[row, place // rank] = root.values[place // rank, :, place % rank]
        yield torch.cat(pulled(scores, list(leaves.values()), seeds.reshape(-1, *scores.shape)), 1)
