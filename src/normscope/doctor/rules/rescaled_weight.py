"""NS607: a weight with the same direction as at an earlier checkpoint but a different length."""

import math

from torch import Tensor

from normscope.doctor.rule import Certainty, Findings, Rule, Subject, layer_of
from normscope.operators.normalizer import acts_on_weights

#: Cosine of rows with the same direction, and smallest ratio of lengths that counts as a difference.
ALONG, OTHER = 1 - 1e-6, 1.05


def factors(old: Tensor, new: Tensor) -> Tensor | None:
    """Return the ratio of the lengths of each row if no row has turned, otherwise ``None``; zero rows are left out.

    >>> import torch
    >>> factors(torch.eye(2), torch.diag(torch.tensor([2.0, -3.0]))).tolist()
    [2.0, 3.0]
    """
    a, b = (t.detach().double().flatten(1).cpu() for t in (old, new))
    lengths = a.norm(dim=1), b.norm(dim=1)
    kept = (lengths[0] > 0) & (lengths[1] > 0)
    if not bool(kept.any()):
        return None
    cosine = (a * b).sum(1)[kept].abs() / (lengths[0] * lengths[1])[kept]
    return lengths[1][kept] / lengths[0][kept] if bool((cosine >= ALONG).all()) else None


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield layers whose weight differs from the earlier one only in its length."""
    earlier = subject.earlier
    if not earlier.differs:
        return
    normalized = {layer_of(s): s.kind for s in earlier.sites if acts_on_weights(s)}
    still = {layer_of(s) for s in subject.weight_sites()}
    for path, old in earlier.weights.items():
        new = earlier.now.get(path)
        if new is None or new.shape != old.shape:
            continue
        found = factors(old, new)
        if found is None:  # transposed convolutions have their outputs along the second axis
            found = factors(old.transpose(0, 1), new.transpose(0, 1))
        if found is None or float(found.log().abs().max()) <= math.log(OTHER):
            continue
        low, high = float(found.min()), float(found.max())
        much = f"{high:.3g} times" if high <= OTHER * low else f"{low:.3g} to {high:.3g} times"
        gone = normalized.get(path, "") if path not in still else ""
        why = f": its {gone} was removed, leaving the weight without it" if gone else ""
        yield rule.finding(
            path,
            f"its weight has the same direction as at the earlier checkpoint but {much} the length{why}; the outputs "
            f"are off by {earlier.distance:.0%} of their size",
            {"least_factor": low, "largest_factor": high, "distance": earlier.distance},
        )


RULE = Rule(
    code="NS607",
    title="weight with the same direction but a different length",
    certainty=Certainty.PROVED,
    why="Training changes the direction of a weight. If only its length changed, something multiplied it by a factor. "
    "Removing spectral or weight normalization must keep the normalized weight: the raw one has a different length. A "
    "lost g, or a normalizer folded twice or folded without being removed, looks the same. Nothing is reported if the "
    "outputs are unchanged.",
    effect="the network no longer computes the function it was trained for",
    fix="store the weight the layer computed with: remove_parametrizations(layer, 'weight', leave_parametrized=True), "
    "or fold once",
    example="import copy\n\n"
    "model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))\n"
    "options = {'before': copy.deepcopy(model)}\n"
    "model[0].weight.data *= torch.linspace(1, 5, 8)[:, None]  # lengths of weight normalization, applied twice",
    good="import copy\n\n"
    "model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))\n"
    "options = {'before': copy.deepcopy(model)}\n"
    "model[0].weight.data += 0.1 * torch.randn(8, 8)  # training",
    needs=("earlier graph",),
    threads=("pytorch/pytorch/issues/8208",),
)
