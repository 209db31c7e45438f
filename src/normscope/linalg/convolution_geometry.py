"""The geometry of a convolution: which input position each output position reads, axis by axis."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from normscope.core.errors import InputError
from normscope.operators.linear_map import LinearMap

PADDING_MODES = ("zeros", "circular", "reflect", "replicate")
CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


@dataclass(frozen=True)
class Axis:
    r"""One spatial axis of a convolution, :math:`y_l = \sum_k w_k\, x_{s l - p + d k}`, :math:`0 \le l < n_{out}`."""

    size: int  #: the number of input positions
    output_size: int  #: the number of output positions
    kernel: int  #: the number of taps
    stride: int  #: the stride ``s``
    dilation: int  #: the dilation ``d``
    padding: int  #: the padding ``p`` on the left; the right one follows from the other numbers

    @property
    def reach(self) -> int:
        """Return the distance from the first to the last tap."""
        return self.dilation * (self.kernel - 1)

    @property
    def right_padding(self) -> int:
        """Return how far the last output reads beyond the last input; negative where inputs are left unread."""
        return self.stride * (self.output_size - 1) + self.reach - self.padding - (self.size - 1)

    @property
    def torus_size(self) -> int:
        r"""Return the least torus that holds the zero-padded axis without wrap-around.

        Outputs that read no input at all are zero and do not count; so a padding beyond the reach of the kernel
        costs nothing. A torus of ``m`` positions works when ``m >= n + max(left, right padding)``.
        """
        first = max(0, -(-(self.padding - self.reach) // self.stride))
        last = min(self.output_size - 1, (self.size - 1 + self.padding) // self.stride)
        left = self.padding - self.stride * first
        right = self.stride * last - self.padding + self.reach - (self.size - 1)
        return self.size + max(left, right, 0)


def convolution_axes(
    input_size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
) -> tuple[Axis, ...]:
    """Return the axes of an ordinary convolution; ``"same"`` padding is asymmetric where the reach is odd.

    >>> convolution_axes([8], [3], [2], [1], [1])[0].output_size
    4
    """
    if isinstance(padding, str) and padding not in ("same", "valid"):
        raise InputError(f"Expected padding to be a number per axis, 'same' or 'valid', got {padding!r}.")
    axes = []
    for i, (n, k, s, d) in enumerate(zip(input_size, kernel, stride, dilation, strict=True)):
        reach = d * (k - 1)
        if padding == "same":
            if s != 1:
                raise InputError(f"padding='same' requires stride 1, got {s}. Pass the padding as numbers.")
            left, total = reach // 2, reach
        else:
            left = 0 if padding == "valid" else int(padding[i])
            total = 2 * left
        if n + total < reach + 1:
            raise InputError(f"A kernel of {reach + 1} positions does not fit into size {n} plus padding {total}.")
        axes.append(Axis(n, (n + total - reach - 1) // s + 1, k, s, d, left))
    return tuple(axes)


def adjoint_axes(
    input_size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
) -> tuple[Axis, ...]:
    """Return the axes of the convolution whose adjoint is the transposed convolution described.

    >>> adjoint_axes([4], [3], [2], [1], [1], [1])[0].size
    8
    """
    axes = []
    every = zip(input_size, kernel, stride, padding, dilation, output_padding, strict=True)
    for n, k, s, p, d, extra in every:
        size = (n - 1) * s - 2 * p + d * (k - 1) + extra + 1
        if size < 1:
            raise InputError(f"A transposed convolution of input size {n} and padding {p} has no output.")
        axes.append(Axis(size, n, k, s, d, p))
    return tuple(axes)


def zero_padded_map(weight: Tensor, axes: Sequence[Axis], groups: int = 1) -> LinearMap:
    """Return the zero-padded convolution ``(Cin, *n) -> (Cout, *n_out)`` as a linear map, with an explicit adjoint.

    >>> axes = convolution_axes([5], [3], [1], [1], [1])
    >>> zero_padded_map(torch.ones(1, 1, 3), axes).apply(torch.ones(1, 5)).tolist()
    [[2.0, 3.0, 3.0, 3.0, 2.0]]
    """
    stride, dilation = [a.stride for a in axes], [a.dilation for a in axes]
    forward, backward = CONVOLUTIONS[len(axes)], TRANSPOSED[len(axes)]
    unit_stride = all(a.stride == 1 for a in axes) and groups == 1
    flipped = weight.transpose(0, 1).flip(*range(2, weight.ndim)).contiguous() if unit_stride else weight
    symmetric = all(a.padding == a.right_padding >= 0 for a in axes)
    pads = _pads((a.padding, a.right_padding) for a in axes)
    back_pads = _pads((a.reach - a.padding, a.reach - a.right_padding) for a in axes)

    def apply(X: Tensor) -> Tensor:
        with torch.no_grad():
            if symmetric:
                return forward(X, weight, None, stride, [a.padding for a in axes], dilation, groups)
            return forward(functional.pad(X, pads), weight, None, stride, 0, dilation, groups)

    def adjoint(Y: Tensor) -> Tensor:
        with torch.no_grad():
            if unit_stride:  # a plain convolution with the flipped kernel, the faster of the two in float64
                return forward(functional.pad(Y, back_pads), flipped, None, 1, 0, dilation)
            whole = backward(Y, weight, None, stride, 0, 0, groups, dilation)
            return functional.pad(whole, [-p for p in pads])

    domain = (weight.shape[1] * groups, *(a.size for a in axes))
    return LinearMap.of_batches(apply, adjoint, domain, (weight.shape[0], *(a.output_size for a in axes)), weight)


def padded_map(weight: Tensor, axes: Sequence[Axis], groups: int, padding_mode: str) -> LinearMap:
    """Return the convolution with any padding mode as a linear map.

    >>> axes = convolution_axes([3], [3], [1], [1], [1])
    >>> padded_map(torch.ones(1, 1, 3), axes, 1, "circular").apply(torch.tensor([[1.0, 0, 0]])).tolist()
    [[1.0, 1.0, 1.0]]
    """
    if padding_mode == "zeros":
        return zero_padded_map(weight, axes, groups)
    inner = zero_padded_map(weight, [extended(a) for a in axes], groups)
    sources = [torch.as_tensor(extension_sources(a, padding_mode), device=weight.device) for a in axes]
    sizes = [a.size for a in axes]

    def extend(X: Tensor) -> Tensor:
        for i, source in enumerate(sources):
            X = X.index_select(2 + i, source)
        return X

    def fold(X: Tensor) -> Tensor:
        for i, (source, size) in enumerate(zip(sources, sizes, strict=True)):
            shape = list(X.shape)
            shape[2 + i] = size
            X = X.new_zeros(shape).index_add_(2 + i, source, X)
        return X

    return LinearMap.of_batches(
        lambda X: inner.apply_batch(extend(X)),
        lambda Y: fold(inner.adjoint_batch(Y)),
        (weight.shape[1] * groups, *sizes),
        inner.range_shape,
        weight,
    )


def extended(axis: Axis) -> Axis:
    """Return the axis after its padding was written out: the same outputs, read from a longer input."""
    right = max(axis.right_padding, 0)
    return Axis(axis.padding + axis.size + right, axis.output_size, axis.kernel, axis.stride, axis.dilation, 0)


def extension_sources(axis: Axis, padding_mode: str) -> list[int]:
    """Return for every position of the padded axis the input position it copies.

    >>> extension_sources(Axis(3, 3, 3, 1, 1, 1), "reflect")
    [1, 0, 1, 2, 1]
    """
    n, left, right = axis.size, axis.padding, max(axis.right_padding, 0)
    positions = range(-left, n + right)
    if padding_mode == "replicate":
        return [min(max(i, 0), n - 1) for i in positions]
    if padding_mode == "circular" and max(left, right) <= n:
        return [i % n for i in positions]
    if padding_mode == "reflect" and max(left, right) < n:
        return [-i if i < 0 else 2 * (n - 1) - i if i >= n else i for i in positions]
    raise InputError(f"Padding ({left}, {right}) of size {n} is not possible with padding_mode={padding_mode!r}.")


def extension_multiplicity(axis: Axis, padding_mode: str) -> int:
    r"""Return :math:`\|E\|^2`: how often the padding of this axis copies one input position, at most.

    The extension ``E`` copies entries, so :math:`E^T E` is diagonal with these counts.

    >>> extension_multiplicity(Axis(5, 5, 3, 1, 1, 1), "replicate")
    2
    """
    if padding_mode == "zeros":
        return 1
    counts = [0] * axis.size
    for i in extension_sources(axis, padding_mode):
        counts[i] += 1
    return max(counts)


def dimensions(weight: Tensor, axes: Sequence[Axis]) -> tuple[int, int]:
    """Return the dimensions of the domain and of the range of one channel group."""
    return weight.shape[1] * math.prod(a.size for a in axes), weight.shape[0] * math.prod(a.output_size for a in axes)


def _pads(pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Return padding pairs in the order ``torch.nn.functional.pad`` wants: last axis first."""
    return [pad for pair in reversed(list(pairs)) for pad in pair]
