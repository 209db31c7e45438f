r"""Recognise a weight whose filters are divided by their own spread or length, however that is written."""

import math

import torch

from normscope.graph.ir import Node
from normscope.graph.recognise import name_of
from normscope.operators.written_out import Surroundings

#: Operations one of which gives the divisor, and how many operations there may be.
_DIVISORS = ("std", "std_mean", "var", "var_mean", "sqrt", "rsqrt", "linalg_vector_norm", "norm", "pow")
_MOST_OPERATIONS = 40
#: Entries of a weight that is checked on numbers, and how large these are: no stabilizer counts.
_LARGEST, _FAR = 2**22, 1e6


def divides_filters(node: Node, around: Surroundings, *, centered: bool) -> bool:
    r"""Return whether a quotient is :math:`g_i (w_i - m_i)/s_i` for every filter :math:`w_i` of a parameter.

    With ``centered``, :math:`m_i` is the mean of the filter and :math:`s_i` its deviation, as in ``w / (std + eps)``
    with the deviation of a reshaped weight, or a mean taken axis by axis. Without, :math:`m_i = 0` and :math:`s_i` is
    the length, as in ``w / (norm + eps)``. Numbers decide, far from any stabilizer.

    Returns:
        True if it is so on three random weights of different sizes and means, with the same gains :math:`g_i`.
    """
    source = _parameter_behind(node, around)
    if source is None:
        return False
    function, gains = around.run(node, source.name), []
    for seed, factor, shift in ((0, 1.0, 0.0), (1, 3.0, 5.0), (2, 0.5, -2.0)):
        generator = torch.Generator().manual_seed(seed)
        x = _FAR * (factor * torch.randn(source.shape or (), generator=generator, dtype=torch.float64) + shift)
        rows, y = x.flatten(1), function(x)
        if y is None or y.shape != node.shape or rows.shape[1] < 2:
            return False
        moved = rows - rows.mean(1, keepdim=True) if centered else rows
        z = moved / moved.square().mean(1, keepdim=True).sqrt()
        gain = (y.flatten(1) * z).mean(1, keepdim=True)
        if not torch.allclose(y.flatten(1), gain * z, rtol=1e-6, atol=1e-6 * float(gain.abs().max())):
            return False
        gains.append(gain)
    return bool(gains[0].any()) and all(torch.allclose(gain, gains[0], rtol=1e-6) for gain in gains)


def _parameter_behind(node: Node, around: Surroundings) -> Node | None:
    """Return the parameter of the same size that a quotient with a divisor is made of, or ``None``."""
    if name_of(node) not in ("div", "mul") or not node.shape or len(node.shape) < 2:
        return None
    source: Node | None = None
    behind, seen = [node.name], set[str]()
    while behind and len(seen) < _MOST_OPERATIONS:
        item = around.graph[behind.pop()]
        if item.name in seen:
            continue
        seen.add(item.name)
        if item is not node and around.is_site(item.name):
            return None  # a factor after one
        if item.op == "parameter" and (item.shape or ())[:1] == node.shape[:1] and _size(item) == _size(node):
            source = item
        behind.extend(item.inputs())
    if source is None or _size(node) > _LARGEST or not around.acts_as_weight(node):
        return None
    return source if any(name_of(around.graph[n]) in _DIVISORS for n in seen) else None


def _size(node: Node) -> int:
    """Return how many numbers a constant has."""
    return math.prod(node.shape or ())
