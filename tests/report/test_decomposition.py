"""The parts of an error as text and JSON, of a decomposition made by hand."""

from __future__ import annotations

import json
from dataclasses import replace

import torch

from normscope.generalization.decomposition import Decomposition
from normscope.generalization.synthetic import Problem, Run
from normscope.report.decomposition import decomposition_sections

PARTS = Decomposition(
    total=0.75,
    estimation=0.5,
    approximation=0.25,
    optimization=0.125,
    generalization=0.4375,
    selection=-0.0625,
    bound=2,
)
PROBLEM = Problem(3, radius=2.0, noise=0.5)
RUN = Run(PROBLEM, 30, 7, 5, PARTS, torch.zeros(3), torch.zeros(3), torch.zeros(3), 0.9375)


def test_each_part_is_a_row() -> None:
    """With what it is, and the sums below."""
    (section,) = decomposition_sections(RUN)
    assert section.title == "error of a model with 3 features, 30 samples, 7 steps, noise 0.5"
    assert section.table is not None
    values = {name.strip(): value for name, _, value in section.table.rows}
    assert values == {
        "total": "0.75",
        "approximation": "0.25",
        "estimation": "0.5",
        "optimization": "0.125",
        "generalization": "0.4375",
        "selection": "-0.0625",
    }
    assert section.after[0] == "the parts add up: yes"
    assert section.after[1].endswith(": 0.8125")  # 0.125 + 0.4375 + 0.25
    assert section.after[2].endswith(": 2")


def test_parts_that_do_not_add_up_are_said_not_to() -> None:
    """Loudly; and a bound that is not known is a dash."""
    wrong = replace(RUN, decomposition=replace(PARTS, approximation=0.3, bound=None))
    (section,) = decomposition_sections(wrong)
    assert section.after[0] == "the parts add up: NO"
    assert section.after[2].endswith(": -")
    assert wrong.to_dict()["adds_up"] is False


def test_the_document_holds_the_same() -> None:
    """And what it takes to make it again."""
    read = json.loads(RUN.to_json())
    assert read["setting"] == {"features": 3, "samples": 30, "steps": 7, "noise": 0.5, "radius": 2.0}
    assert (read["seed"], read["kind"], read["schema_version"]) == (5, "decomposition", 1)
    assert (read["total"], read["bound"], read["slides_total"]) == (0.75, 2, 0.8125)
    assert read["largest_deviation"] == 0.9375
    assert read["adds_up"] is True
    assert all(abs(gap) < 1e-15 for gap in read["residuals"].values())
