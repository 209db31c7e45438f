"""Folding: the tree of what ran, with the parameters counted right and equal neighbours in one block."""

from __future__ import annotations

import json

import torch
from torch import Tensor, nn

from normscope.graph.module_tree import Block, fold
from normscope.graph.recorder import record_graph


def _fold(model: nn.Module, *shape: int) -> list[Block]:
    return fold(record_graph(model.eval(), (torch.zeros(shape),))[0])


class Encoder(nn.Module):
    """A transformer encoder with a head, and a layer that never runs."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(8, 3)
        self.unused = nn.Linear(100, 100)

    def forward(self, x: Tensor) -> Tensor:
        """Run the model."""
        return self.head(self.encoder(x).mean(1))


def test_equal_layers_become_one_block() -> None:
    """Equal layers become one block."""
    model = Encoder(5)
    blocks = {block.name: block for block in _fold(model, 2, 4, 8)}
    assert list(blocks) == ["", "encoder", "head"]
    assert blocks[""].ops == ("aten.mean.dim",)
    ((layers,),) = [b.children for b in blocks["encoder"].children]
    assert layers.name == "encoder.layers.0..4"
    assert layers.type == "TransformerEncoderLayer"
    assert layers.repeat == 5
    expected = sum(p.numel() for p in model.encoder.parameters())
    assert layers.parameters == expected == blocks["encoder"].parameters
    assert [child.name for child in layers.children][:2] == ["encoder.layers.0.self_attn", "encoder.layers.0.dropout1"]


def test_every_used_parameter_counts_once() -> None:
    """Every used parameter counts once."""
    model = Encoder(3)
    used = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("unused"))
    assert sum(block.parameters for block in _fold(model, 2, 4, 8)) == used
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    assert sum(block.parameters for block in _fold(tied, 2, 4)) == 16 + 4 + 4


def test_unequal_neighbours_stay_apart() -> None:
    """Unequal neighbours stay apart."""
    wide = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 5))
    assert [(b.name, b.repeat) for b in _fold(wide, 2, 4)] == [("0..1", 2), ("2", 1), ("3..4", 2)]
    mixed = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.Tanh(), nn.ReLU())
    assert [(b.name, b.type, b.repeat) for b in _fold(mixed, 2)] == [
        ("0", "ReLU", 1),
        ("1..2", "Tanh", 2),
        ("3", "ReLU", 1),
    ]
    deep = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), a()) for a in (nn.ReLU, nn.ReLU, nn.Tanh)))
    assert [b.name for b in _fold(deep, 2, 4)] == ["0..1", "2"]


def test_a_gap_in_the_numbers_is_not_bridged() -> None:
    """A gap in the numbers is not bridged."""

    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(4)])

        def forward(self, x: Tensor) -> Tensor:
            """Run the model."""
            for i in (0, 1, 3):
                x = self.layers[i](x)
            return x

    (layers,) = _fold(Skipping(), 1, 3)
    assert [(b.name, b.repeat) for b in layers.children] == [("layers.0..1", 2), ("layers.3", 1)]


def test_blocks_are_plain_data() -> None:
    """Blocks are plain data."""
    last = _fold(Encoder(2), 2, 4, 8)[-1]
    expected = {"type": "Linear", "repeat": 1, "ops": ["aten.linear.default"], "parameters": 27, "children": []}
    assert json.loads(json.dumps(last.to_dict())) == {"name": "head", **expected}
