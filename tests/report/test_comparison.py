"""The text of a comparison: models by letter, changes by factor, findings by what is new."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import nn

from networks import points
from normscope import analyze
from normscope.analysis.checkpoint import analyze_checkpoint
from normscope.analysis.compare import Comparison, compare
from normscope.core.finding import Finding, Severity
from normscope.report.checkpoint import checkpoint_sections
from normscope.report.comparison import change_text, comparison_sections, letters
from normscope.report.table import plain_text

X = points(6, 4).float()


def _pair(factor: float, *codes: str) -> Comparison:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        one = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
        torch.manual_seed(0)
        two = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with torch.no_grad():
        two[2].weight.mul_(factor)
    found = {"two": [Finding(code, Severity.WARNING, "2", "is large") for code in codes], "one": []}
    return compare({"one": analyze(one, X), "two": analyze(two, X)}, found if codes else None)


def test_what_changed_is_shown_and_the_rest_is_counted() -> None:
    """Only the second layer changed, by ten."""
    text = plain_text(comparison_sections(_pair(10.0, "NS999")))
    assert "A = one" in text
    assert "B = two" in text
    layers = text[text.index("\nlayers") :]
    assert "x 10" in layers
    assert "1 of 2 did not change" in layers
    assert "new in B: NS999 warning 2: is large" in text


def test_equal_models_say_so() -> None:
    """No table of nothing."""
    text = plain_text(comparison_sections(_pair(1.0)))
    assert "none of 2 changed" in text
    assert "findings" not in text


def test_everything_shows_every_row_in_order() -> None:
    """Also what did not change."""
    (table,) = [s.table for s in comparison_sections(_pair(10.0), everything=True) if s.title == "layers"]
    assert table is not None
    assert [row[0] for row in table.rows if row[0]] == ["0", "2"]


def test_formulas_of_papers_are_shown_where_asked_for_and_every_number_has_words() -> None:
    """No key of the result is shown as it is."""
    norm = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)).eval()
    layer = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3)).eval()
    both = compare({"bn": analyze(norm, X), "ln": analyze(layer, X)})
    brief, whole = plain_text(comparison_sections(both)), plain_text(comparison_sections(both, printed=True))
    assert "printed (" not in brief
    assert "--printed" in brief
    for words in ("printed (Corollary 10)", "printed (Corollary 11)", "printed (Theorem 9)"):
        assert words in whole
    assert not re.search(r"\b(upper|lower|proved|\w+_\w+)\b", whole.replace("batch_norm", "").replace("layer_norm", ""))


def test_first_looks_have_no_attained_norms() -> None:
    """What was not looked for is not zero."""
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    other = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    text = plain_text(
        comparison_sections(compare({"one": analyze(net, X, fast=True), "two": analyze(other, X, fast=True)}))
    )
    layers = text[text.index("\nlayers") :]
    assert "certified" in layers
    assert "attained" not in layers


def test_many_models_have_titles() -> None:
    """More than the alphabet has letters."""
    many = letters(Comparison(tuple(map(str, range(28))), (), ()))
    assert many[0] == "A"
    assert many[25] == "Z"
    assert len(set(many)) == 28


def test_changes_as_factors() -> None:
    """Infinite ones in words."""
    assert change_text(float("inf")) == "x no bound"
    assert change_text(-25.0) == "x 1e-25"


def test_checkpoints_are_compared_in_the_words_of_their_own_report(tmp_path: Path) -> None:
    found = {}
    for factor in (1.0, 2.0):
        torch.save({"conv.weight": factor * torch.ones(1, 1, 2, 2)}, tmp_path / "m.pt")
        found[str(factor)] = analyze_checkpoint(tmp_path / "m.pt")
    text = plain_text(comparison_sections(compare(found), printed=True))
    own = plain_text(checkpoint_sections(found["1.0"]))
    for words in ("product of weight norms (Lemma 5)", "product of matrices and reshaped kernels, not a bound"):
        assert words in text
        assert words in own
    assert "reshaped kernel " in text[text.index("\nlayers") :]


def test_tensors_without_a_norm_are_compared_by_their_entries(tmp_path: Path) -> None:
    """A scale, a bias and statistics that changed are shown; a counter is said not to be compared."""
    found = {}
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    for name in ("a", "b"):
        torch.save(net.state_dict(), tmp_path / "m.pt")
        found[name] = analyze_checkpoint(tmp_path / "m.pt")
        with torch.no_grad():
            net[1].weight.mul_(1000)
            net[1].bias.add_(5)
            net[1].running_var.mul_(4)
    text = plain_text(comparison_sections(compare(found)))
    assert re.search(r"1\.weight +norm scale +largest entry +1 +1000 +x 1000", text)
    assert re.search(r"1\.bias +bias +largest entry +0 +5 +from 0", text)
    assert re.search(r"1\.running_var .* least std +1 +2 +x 2", text)
    assert "3 of 6 did not change in these numbers" in text
    assert "1 tensor without numbers to compare" in text
    whole = plain_text(comparison_sections(compare(found), everything=True))
    assert re.search(r"num_batches_tracked .* not compared +there +there", whole)


def test_a_finding_that_is_gone_in_several_models_is_said_once() -> None:
    """With the letters of all of them."""
    result, old = analyze(nn.Linear(4, 2), X), Finding("NS101", Severity.WARNING, "0", "text")
    names = ("a", "b", "c", "d")
    found = compare(dict.fromkeys(names, result), {name: [old] if name == "a" else [] for name in names})
    text = plain_text(comparison_sections(found))
    assert text.count("NS101") == 1
    assert "gone in B, C, D: NS101 warning 0: text" in text
