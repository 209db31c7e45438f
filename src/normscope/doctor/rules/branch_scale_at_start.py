"""NS605: a branch scale that still has its tiny initial value in a trained network."""

from torch import Tensor, nn

from normscope.doctor.modules import is_normalizer
from normscope.doctor.rule import Certainty, Findings, Rule, Subject
from normscope.doctor.rules.decayed_normalizer import gates

#: Largest initial value of a branch scale that starts closed.
TINY = 1e-3
#: Standard deviation of the shifts of a normalizer that shows that it was trained.
MOVED = 1e-3


def _was_trained(norm: nn.Module) -> bool:
    """Return whether the shifts of a normalizer differ by more than after a few small steps."""
    shift = getattr(norm, "bias", None)
    return isinstance(shift, Tensor) and shift.numel() > 1 and float(shift.detach().float().std()) > MOVED


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield the branches whose scales are all the same tiny number, although normalizers were trained."""
    if not any(is_normalizer(m) and _was_trained(m) for m in subject.model.modules()):
        return
    found = {name: subject.parameters[name] for name in gates(subject) if name in subject.parameters}
    for name, gate in found.items():
        flat = gate.detach().flatten()
        start = float(flat[0])
        if abs(start) > TINY or not bool((flat == flat[0]).all()):
            continue  # it was updated
        if start == 0 and subject.purpose != "inference":
            continue  # a branch that starts at zero may have just been added to a trained network
        yield rule.finding(
            name.rpartition(".")[0],
            f"{name} is {start:g} in every entry, the initial value of a branch scale, but the normalizers of this "
            "network were trained: was it lost in loading? The branch adds almost nothing",
            {"scale": start, "entries": gate.numel()},
        )


_BLOCKS = (
    "class Block(nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.norm, self.fc = nn.LayerNorm(8), nn.Linear(8, 8)\n"
    "        self.gamma = nn.Parameter(1e-6 * torch.ones(8))\n\n"
    "    def forward(self, x):\n"
    "        return x + self.gamma * torch.relu(self.fc(self.norm(x)))\n\n\n"
    "model = nn.Sequential(Block(), Block())\n"
    "options = {'input_shape': (8,)}\n"
)

RULE = Rule(
    code="NS605",
    title="branch scale at its initial value in a trained network",
    certainty=Certainty.LIKELY,
    why="A layer scale starts at a tiny number (1e-6), the same in every channel, and moves with the first step. If it "
    "is still there while the shifts of normalizers were trained, it was not loaded: old names (gamma, beta) that a "
    "loader renames, or a key that strict=False ignores. Every branch is then multiplied by almost zero.",
    effect="whole blocks do nothing, and the model's outputs are garbage, without an error",
    fix="load the scale from the checkpoint: check which keys load_state_dict reports as missing or unexpected",
    example=_BLOCKS + "for block in model:\n"
    "    nn.init.normal_(block.norm.bias)  # trained weights were loaded, the scales were not",
    good=_BLOCKS.rstrip(),  # as they start
    threads=("2noise/ChatTTS/issues/732",),
)
