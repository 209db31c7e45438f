"""The system of scales: its solutions are exactly those of the equations."""

from __future__ import annotations

import torch

from normscope.geometry.channels.labels import FIXED, NOTHING, ChannelLabels, DisjointSets


def test_classes_join() -> None:
    classes = DisjointSets(5)
    classes.join(4, 2)
    classes.join(2, 1)
    assert classes.roots().tolist() == [0, 1, 1, 3, 1]


def test_products_quotients_and_powers() -> None:
    labels = ChannelLabels()
    a, b = labels.new(1), labels.new(1)
    ratio = labels.combine(labels.power(a, 2.0), b, -1.0)
    labels.forbid_scaling(ratio)  # 2 a = b
    classes, (found,) = labels.solve()
    assert found[int(classes[b])] == 2 * found[int(classes[a])] != 0


def test_an_equation_with_one_unknown_makes_it_zero() -> None:
    labels = ChannelLabels()
    a, b, c = labels.new(3).tolist()
    labels.equation([(a, 1.0), (b, 1.0), (c, -1.0)])
    labels.unscalable |= {a, b}
    assert labels.solve()[1] == []


def test_nothing_and_fixed() -> None:
    labels = ChannelLabels()
    a = labels.new(2)
    zero = torch.full((2,), NOTHING)
    labels.tie(a, zero)
    assert len(labels.solve()[1]) == 2
    labels.tie(a[:1], torch.tensor([FIXED]))
    assert len(labels.solve()[1]) == 1
    assert labels.combine(a, zero).tolist() == [NOTHING, NOTHING]


def test_three_terms_leave_two_free() -> None:
    labels = ChannelLabels()
    a, b = labels.new(3), labels.new(3)
    labels.combine(a, b)
    assert len(labels.solve()[1]) == 6
