"""The report of a result: what is said, in which order, and that nothing unknown is hidden."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import nn

from normscope.analysis import analyze
from normscope.core.around_data import Around, Neighbourhood
from normscope.core.finding import Finding, Severity
from normscope.core.gap import CAUSES, Gap, Share
from normscope.core.result import Coverage, LayerResult, NormalizerResult, OpaqueOperation, Result
from normscope.core.value import Kind, Value
from normscope.report.analysis import ADVICE, FOLDED, LARGEST_SHARES, compare_section, gap_section, result_sections
from normscope.report.table import plain_text


def _result(**changes: Any) -> Result:
    fields: dict[str, Any] = {
        "model": {"name": "net", "class": "Net", "parameters": 1234567, "mode": "running", "norm": "l2"},
        "input": {"blocks": [{"name": "x", "shape": [1, 3], "kind": "input"}]},
        "coverage": Coverage(ops=10, understood=10, parameters=1.0, parameters_total=1234567),
        "normalizers": (),
        "layers": (),
        "end_to_end": {
            "printed": Value.of(1e9, Kind.PRINTED, mode="running"),
            "global": Value.of(12.0, Kind.CERTIFIED, mode="running"),
            "global_probabilistic": Value.of(8.0, Kind.PROBABILISTIC, delta=1e-9),
            "variance_floor": None,
            "lower": Value.of(4.0, Kind.LOWER),
            "lower_everywhere": Value.of(4.0, Kind.LOWER),
        },
    }
    return Result(**(fields | changes))


def _row(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(start))


def test_sections_come_in_order() -> None:
    """Sections come in order."""
    value = Value.of(2.0, Kind.CERTIFIED)
    result = _result(
        messages=("a message",),
        findings=(Finding("NS101", Severity.WARNING, "fc", "a bias has no effect"),),
        normalizers=(NormalizerResult("bn", "batch_norm", None, None, value),),
        layers=(LayerResult("fc", "matrix", (3, 3), value, Value.of(2.0, Kind.LOWER)),),
        effect={"printed_product": {"log10": 8.0, "kind": "printed", "note": "n"}},
        statistics={"samples": 3, "inputs": [], "before_activations": []},
    )
    titles = [section.title for section in result_sections(result, printed=True)]
    assert titles == [
        "net",
        "model",
        "findings",
        "coverage",
        "messages",
        "end to end",
        "normalizers",
        "layers",
        "what normalizers change",
        "statistics of the data",
    ]


def test_end_to_end_says_kind_and_gap() -> None:
    """End to end says kind and gap."""
    text = plain_text(result_sections(_result(), printed=True))
    assert _row(text, "printed (Theorem 9)").split()[3:7] == ["1e+09", "printed", "x", "2.5e+08"]
    assert "certified" in _row(text, "certified, all inputs")
    assert "x 3 " in _row(text, "certified, all inputs")
    assert "prob. 1-1e-9" in text
    assert "variance floor" not in text


def test_a_printed_number_below_the_attained_one_is_called_no_bound() -> None:
    """A printed number below the attained one is called no bound."""
    values = {"printed": Value.of(1.0, Kind.PRINTED), "lower": Value.of(4.0, Kind.LOWER)}
    assert "not a bound" in _row(
        plain_text(result_sections(_result(end_to_end=values), printed=True)), "printed (Theorem 9)"
    )


def test_no_bound_is_said_in_words() -> None:
    """No bound is said in words."""
    values = {"global": Value(math.inf, Kind.CERTIFIED), "lower": Value(-math.inf, Kind.LOWER)}
    text = plain_text(result_sections(_result(end_to_end=values)))
    assert "no bound" in _row(text, "certified, all inputs")
    assert _row(text, "attained ").split()[1:3] == ["0", "attained"]


def test_opaque_operations_are_shown_with_their_place_and_the_way_out() -> None:
    """Opaque operations are shown with their place and the way out."""
    opaque = OpaqueOperation("fft", "aten.fft_fft.default", "mixer.0", "no rule", known=False)
    coverage = Coverage(ops=10, understood=9, parameters=0.5, parameters_total=100, opaque=(opaque,))
    text = plain_text(result_sections(_result(coverage=coverage)))
    assert "9 of 10 operations understood, 50 % of 100 parameters" in text
    assert all(word in _row(text, "aten.fft_fft.default") for word in ("mixer.0", "unknown", "no rule"))
    assert 'normscope.register_rule("aten.fft_fft.default", rule)' in text


def test_known_operations_without_a_constant_do_not_ask_for_a_rule() -> None:
    """Known operations without a constant do not ask for a rule."""
    opaque = OpaqueOperation("sqrt", "aten.sqrt.default", "", "infinite slope at 0", known=True)
    coverage = Coverage(ops=1, understood=1, parameters=1.0, parameters_total=0, opaque=(opaque,))
    text = plain_text(result_sections(_result(coverage=coverage)))
    assert "no finite constant" in text
    assert "register_rule" not in text


def test_normalizers_say_whether_the_printed_number_is_a_bound() -> None:
    """Normalizers say whether the printed number is a bound."""
    proved, printed = Value.of(2.0, Kind.CERTIFIED), Value.of(1.5, Kind.PRINTED)
    item = NormalizerResult("bn", "batch_norm", printed, False, proved, None, None, {"eps": 1e-5, "std_min": 0.25})
    result = _result(normalizers=(item,))
    shown = ["bn", "batch_norm", "2", "0.25", "1e-05"]
    assert _row(plain_text(result_sections(result)), "bn").split() == shown
    assert _row(plain_text(result_sections(result, printed=True)), "bn").split() == [*shown, "1.5", "no"]


def test_formulas_of_papers_are_folded_away_unless_asked_for() -> None:
    """Without being asked there is one line that says how to ask."""
    result = _result(effect={"printed_product": {"log10": 8.0, "kind": "printed", "note": "n"}})
    text = plain_text(result_sections(result))
    assert "Theorem 9" not in text
    assert "printed product" not in text
    assert FOLDED in text
    assert "printed product" in plain_text(result_sections(result, printed=True))


def test_layers_show_their_width_and_folded_norm() -> None:
    """Layers show their width and folded norm."""
    layer = LayerResult(
        "fc", "matrix", (3, 4), Value.of(2.2, Kind.CERTIFIED), Value.of(2.0, Kind.LOWER), Value.of(0.5, Kind.CERTIFIED)
    )
    assert _row(plain_text(result_sections(_result(layers=(layer,)))), "fc").split() == [
        "fc",
        "matrix",
        "3x4",
        "2",
        "2.2",
        "0.1",
        "0.5",
    ]


def test_compare_has_one_column_per_result() -> None:
    """Compare has one column per result."""
    other = _result(end_to_end={"global": Value.of(3.0, Kind.CERTIFIED), "without_normalizers": None})
    text = plain_text([compare_section({"left": _result(), "right": other}, {"accuracy": ["97 %", "98 %"]})])
    assert _row(text, "accuracy").split() == ["accuracy", "97", "%", "98", "%", "-"]
    assert _row(text, "certified, all inputs").split()[-3:] == ["12", "3", "certified"]
    assert "printed" not in text
    assert "without" not in text


def test_compare_leaves_a_cell_empty_where_a_result_has_no_bound() -> None:
    """In its own column, first, in the middle or last, end to end and around the data."""
    near = Neighbourhood(0.5, (2.0,), Value.of(2.0, Kind.CERTIFIED))
    some = _result(around=Around(0.9, 0.99, 1, 1, (near,)), end_to_end={"global": Value.of(3.0, Kind.CERTIFIED)})
    none = _result(end_to_end={"global": None})
    for order in itertools.product([some, none], repeat=3):
        if some not in order:
            continue
        table = compare_section(dict(zip("abc", order, strict=True))).table
        assert table is not None
        assert table.columns == ("constant", "a", "b", "c", "kind")
        assert table.rows == (
            ("within 0.5 of 90 % of inputs", *("2" if result is some else "-" for result in order), "certified"),
            ("certified, all inputs", *("3" if result is some else "-" for result in order), "certified"),
        )


def test_compare_refuses_rows_of_another_length() -> None:
    """Compare refuses rows of another length."""
    with pytest.raises(ValueError, match="one cell for each of 1"):
        plain_text([compare_section({"left": _result()}, {"accuracy": ["1", "2"]})])


def test_a_real_result_holds_its_numbers() -> None:
    """A real result holds its numbers."""
    head = nn.Linear(5, 2)
    torch_model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), head).eval()
    with torch.no_grad():
        for p in torch_model.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    data = torch.randn(20, 3, generator=torch.Generator().manual_seed(1))
    result = analyze(torch_model, data)
    text = plain_text(result_sections(result))
    norm = float(torch.linalg.matrix_norm(head.weight.detach().double(), ord=2))
    assert f"{norm:.4g}" in _row(text[text.index("layers") :], "3 ")
    assert "100 % of 42 parameters" in text
    assert "20 samples" in text
    assert text.isascii()


def test_a_long_domain_is_told_once_below_the_table() -> None:
    """In a narrow terminal its column would take many lines, and twice."""
    domain = "stacked batches of 16 whose normalizer stds stay above those of the first batch"
    stacked = Value.of(3.0, Kind.CERTIFIED, domain=domain)
    values = {"global": Value.of(2.0, Kind.CERTIFIED), "stacked_batch": stacked, "stacked_batch_lower": stacked}
    told = plain_text(result_sections(_result(end_to_end=values)))
    assert told.count(domain) == 1
    assert f"note 1: {domain}" in told


def test_the_most_expensive_steps_come_first_and_the_rest_is_counted() -> None:
    shares = tuple(Share(f"layer {i}", "activation patterns", 0.1 * i) for i in range(LARGEST_SHARES + 3))
    section = gap_section(Gap("variance_floor", shares))
    assert section.table is not None
    assert section.table.rows[0] == (f"layer {LARGEST_SHARES + 2}", "activation patterns", "+1.00")
    assert len(section.table.rows) == LARGEST_SHARES
    assert section.after[0] == "3 more steps add less"
    assert "variance-floor" in section.lines[0]


def test_what_costs_most_gets_advice() -> None:
    section = gap_section(Gap("global", (Share("a", "attention", 2.0), Share("b", "chains", -0.5))))
    assert section.after == (f"to reduce it first: {ADVICE['attention']}",)
    assert set(ADVICE) == set(CAUSES) - {"chains", "search"}


def test_what_does_not_apply_is_left_out() -> None:
    """The mode of BatchNorm without one, the legend of a column that is not there, the kind of a missing number."""
    value = Value.of(2.0, Kind.CERTIFIED)
    layer = NormalizerResult("ln", "layer_norm", None, None, value)
    endless = {"global": value, "without_normalizers": Value(math.inf, Kind.CERTIFIED)}
    text = plain_text(result_sections(_result(normalizers=(layer,), end_to_end=endless)))
    assert "BatchNorm mode" not in text
    assert "least std" not in text
    assert _row(text, "certified, without normalizers").split()[3:6] == ["no", "bound", "-"]
    batch = NormalizerResult("bn", "batch_norm", None, None, value, details={"std_min": 0.5})
    text = plain_text(result_sections(_result(normalizers=(batch,))))
    assert "BatchNorm mode running" in text
    assert "least std: the smallest standard deviation" in text
