"""Norms of convolutions with any padding, stride, dilation and groups, transposed or not, on inputs of a given size."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.linalg.bounds import NormBounds, largest_norm
from normscope.linalg.convolution_block import (
    ALWAYS_DENSE_UP_TO,
    SMALL_SIDE,
    ConvolutionBlock,
    block_norm,
    certificate_log,
    relaxation,
)
from normscope.linalg.convolution_geometry import PADDING_MODES, Axis, adjoint_axes, convolution_axes
from normscope.linalg.convolution_on_torus import torus_bound
from normscope.linalg.dense import largest_matrix_norm
from normscope.linalg.matrix_rounding import UNIT_ROUNDOFF, to_unit_scale

#: The most groups to refine one by one after the batch over all of them.
REFINED_GROUPS = 64


@statement(
    "normscope", "Convolution norm", holds="float64; the deterministic part for all sizes, log_probable with 1-delta"
)
def convolution_norm(
    weight: Tensor,
    input_size: Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    transposed: bool = False,
    output_padding: int | Sequence[int] = 0,
    padding_mode: str = "zeros",
    output_scale: Tensor | None = None,
    input_scale: Tensor | None = None,
    tolerance: float = 1e-3,
    delta: float = 1e-9,
    seed: int = 0,
) -> NormBounds:
    r"""Return bounds on the l2 operator norm of a convolution on inputs of one size.

    The map is :math:`\operatorname{diag}(s_{out}) \cdot \mathrm{conv}_W \cdot \operatorname{diag}(s_{in})`, as torch
    computes it on one sample.

    Args:
        weight: the kernel, ``(Cout, Cin / groups, *k)``, or ``(Cin, Cout / groups, *k)`` when transposed.
        input_size: the spatial size of the input, one to three numbers.
        stride: the stride.
        padding: the padding, or ``"same"`` or ``"valid"``.
        dilation: the dilation.
        groups: the number of channel groups.
        transposed: whether this is a transposed convolution.
        output_padding: what a transposed convolution adds to one side of its output.
        padding_mode: ``zeros``, ``circular``, ``reflect`` or ``replicate``.
        output_scale: one factor per output channel, e.g. of a following batch normalization.
        input_scale: one factor per input channel.
        tolerance: the relative width the certificate should reach.
        delta: the failure probability of a probabilistic bound.
        seed: the seed of all start vectors.

    Returns:
        The bounds.

    Raises:
        InputError: if shapes do not fit together.
        NonFiniteError: if a weight or a scale is NaN or infinite.

    >>> box = torch.ones(1, 1, 3)
    >>> bounds = convolution_norm(box, [9], padding=1)
    >>> bounds.lower <= 1 + 2 * math.cos(math.pi / 10) <= bounds.upper, bounds.width < 1e-9
    (True, True)
    """
    rank = len(input_size)
    _check(weight, rank, groups, transposed, padding, padding_mode)
    steps, dilations = _per_axis(stride, rank), _per_axis(dilation, rank)
    if transposed:
        assert not isinstance(padding, str)  # refused above
        pads, extra = _per_axis(padding, rank), _per_axis(output_padding, rank)
        axes = adjoint_axes(input_size, weight.shape[2:], steps, pads, dilations, extra)
        output_scale, input_scale = input_scale, output_scale  # the adjoint swaps the sides
    else:
        pads_or_word = padding if isinstance(padding, str) else _per_axis(padding, rank)
        axes = convolution_axes(input_size, weight.shape[2:], steps, pads_or_word, dilations)
    kernel, log_factor = _folded(weight, groups, output_scale, input_scale)
    entry_error = 0.0 if output_scale is None and input_scale is None else 4 * UNIT_ROUNDOFF
    if kernel.numel() == 0 or not bool(kernel.any()):
        return NormBounds.exact(0.0, method="zero")
    if _is_blockwise(axes, padding_mode):
        matrices = kernel.reshape(groups, kernel.shape[0] // groups, -1)
        margin = entry_error * math.sqrt(min(matrices.shape[-2:]))  # every entry carries a relative error
        bounds = largest_matrix_norm(matrices, seed=seed).widen(margin)
        return bounds.scaled(log_factor)
    blocks = [
        ConvolutionBlock(part, axes, padding_mode, entry_error)
        for part in kernel.reshape(groups, -1, *kernel.shape[1:])
    ]
    solve = partial(block_norm, tolerance=tolerance, delta=delta / groups, seed=seed)
    bounds = solve(blocks[0]) if groups == 1 else _grouped_norm(kernel, blocks, tolerance, solve)
    return bounds.scaled(log_factor)


def _grouped_norm(
    kernel: Tensor, blocks: list[ConvolutionBlock], tolerance: float, solve: Callable[..., NormBounds]
) -> NormBounds:
    """Return the largest norm of all groups: torus bounds of all in one batch, then the largest ones refined.

    A group whose certificate lies below the attained value of another cannot matter; so groups are refined from the
    largest certificate down, until the largest is a refined one.
    """
    relaxed = relaxation(kernel, blocks[0].axes, len(blocks), blocks[0].padding_mode)
    if relaxed.form.side > SMALL_SIDE:
        return largest_norm(solve(b) for b in blocks)
    tori = relaxed.tori if relaxed.form.side == 1 else relaxed.smallest_tori
    squares = torch.stack([torus_bound(relaxed.form, torus) for torus in tori]).amin(0)
    logs = [
        certificate_log(s, relaxed.log_factor, b.entry_slack)
        for s, b in zip(squares.sqrt().tolist(), blocks, strict=True)
    ]
    known = [NormBounds.certified(-math.inf, log, "torus") for log in logs]
    refined: set[int] = set()
    attained = -math.inf
    # Small groups are cheap to solve exactly; for large ones a torus bound within the tolerance is enough.
    enough = 0.0 if blocks[0].smaller_dimension <= ALWAYS_DENSE_UP_TO else 0.5 * math.log1p(tolerance)
    while len(refined) < REFINED_GROUPS:
        i = max(range(len(blocks)), key=lambda k: known[k].log_probable)
        if i in refined or known[i].log_probable <= attained + enough:
            break
        known[i] = solve(blocks[i], log_upper=logs[i])
        attained = max(attained, known[i].log_lower)
        refined.add(i)
    return largest_norm(known)


def _is_blockwise(axes: Sequence[Axis], padding_mode: str) -> bool:
    """Return whether windows do not overlap and one lies inside the input: the map is block diagonal.

    Its norm is that of the kernel as a matrix; windows cut by the border are parts of it.
    """
    for a in axes:
        if a.reach >= a.stride and a.kernel > 1:
            return False
        if padding_mode != "zeros" and (a.padding > 0 or a.right_padding > 0):
            return False
        first = -(-max(a.padding, 0) // a.stride)
        if first >= a.output_size or a.stride * first - a.padding + a.reach > a.size - 1:
            return False
    return True


def _folded(
    weight: Tensor, groups: int, output_scale: Tensor | None, input_scale: Tensor | None
) -> tuple[Tensor, float]:
    """Return the kernel multiplied by the channel factors, at unit scale, and the logarithm of the scale."""
    kernel, log_factor = to_unit_scale(weight)
    rows, columns = kernel.shape[0] // groups, kernel.shape[1]
    folded = kernel.reshape(groups, rows, *kernel.shape[1:])
    for name, scale, sides in (("output", output_scale, (rows, 1)), ("input", input_scale, (1, columns))):
        if scale is None:
            continue
        channels = groups * max(sides)
        if scale.numel() != channels:
            raise InputError(f"Expected one {name} factor per channel ({channels}), got {scale.numel()}.")
        factors, log = to_unit_scale(scale.to(kernel.device))
        folded = folded * factors.reshape(groups, *sides, *[1] * (kernel.ndim - 2))
        log_factor += log
    again, log = to_unit_scale(folded.reshape(kernel.shape))
    return again, log_factor + log


def _check(
    weight: Tensor, rank: int, groups: int, transposed: bool, padding: int | Sequence[int] | str, padding_mode: str
) -> None:
    """Raise an error if the arguments do not describe a convolution."""
    if rank not in (1, 2, 3) or weight.ndim != rank + 2:
        raise InputError(
            "Expected a kernel with two channel axes and one axis per input size (1 to 3), got shape "
            f"{tuple(weight.shape)} and {rank} sizes."
        )
    if groups < 1 or weight.shape[0] % groups:
        raise InputError(f"Expected groups to divide the first axis of the kernel, got {groups} and {weight.shape[0]}.")
    if padding_mode not in PADDING_MODES:
        raise InputError(f"Expected padding_mode to be one of {', '.join(PADDING_MODES)}, got {padding_mode!r}.")
    if transposed and (isinstance(padding, str) or padding_mode != "zeros"):
        raise InputError("Transposed convolutions only support zero padding, given as numbers.")


def _per_axis(value: int | Sequence[int], rank: int) -> list[int]:
    numbers = [value] * rank if isinstance(value, int) else [int(v) for v in value]
    if len(numbers) == 1:
        numbers = numbers * rank
    if len(numbers) != rank:
        raise InputError(f"Expected one number, or one per axis ({rank}), got {numbers}.")
    return numbers
