"""The audit: every claim has a check, its verdict follows from numbers, and what goes wrong is seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch

from checked_claims import claim_entry
from normscope import audit
from normscope.core.errors import InputError
from normscope.papers.audit import SOURCES, Audit, CheckedClaim, chosen_claims, every_claim
from normscope.papers.claim import Claim, Outcome, Verdict
from normscope.papers.explain import located
from normscope.papers.than2025.claims import statements_01_to_03_normalizers as normalizers

#: What a reading of the papers found; of a claim with two parts, the part that is checked under its id.
FOUND = {
    "holds": (
        "001-L2a 001-L2b 001-L23 001-D4 001-L5 001-T6 001-T9 001-C10.2 001-C11 001-T12b 001-T13(9) 001-T15 "
        "002-L4 002-est 003-1/c 003-C411 003-met 003-L51 003-X1 004-M3 X-BNtrain "
        "X-BNfold X-RMS X-IN X-res X-att X-attB X-homog X-ressym X-share"
    ),
    "loose": "001-L3 001-C10.1",
    "false": (
        "001-L1 001-RED 001-T13(8) 001-C14= 001-R17 001-IC 001-C18 001-C19 001-T20c 002-BN 002-LN 002-GN 002-num "
        "002-opt 003-BN1 003-Eq1 003-LNb 003-WNd 003-P4.1a 003-grp 003-LNs 003-P4.3 003-P43g 003-T1 003-xl 003-L51d "
        "003-L51n 003-L51L 003-WD 003-H0 003-61 003-A11 003-A12a 003-A12b 003-A12c 003-E51 003-7b"
    ),
    "needs an assumption": (
        "001-L1' 001-L2c 001-R7 001-T12a 001-T12c 001-C14(10) 001-R16 001-T20 001-C21 001-C22 002-T1 003-P4.1b "
        "003-P4.2 003-7a 003-X4 004-M1"
    ),
    "unsupported": "001-curse 001-abs 003-7c 003-X3",
    "not checkable": "001-HKK 001-LLA 002-norm 004-M2",
}
#: Claims with several parts, notes and additions: they have an entry, and its own test says which verdict.
THERE = "003-L51W 003-A12d 003-X2 004-M1' 004-Q1 004-def"
EXPECTED = [(id, verdict) for verdict, ids in FOUND.items() for id in ids.split()]


@pytest.fixture(scope="module")
def whole() -> Audit:
    """Return the audit of all papers, as ``audit()`` returns it."""
    return Audit(tuple(map(claim_entry, every_claim())))


def test_the_check_finds_what_a_reading_of_the_papers_found(whole: Audit) -> None:
    """Claim by claim."""
    assert {id: whole[id].verdict for id, _ in EXPECTED} == dict(EXPECTED)


def test_claims_with_several_parts_are_there(whole: Audit) -> None:
    assert [id for id in THERE.split() if whole[id].outcome is None] == []


def test_no_check_fails(whole: Audit) -> None:
    assert [(entry.claim.id, entry.error) for entry in whole.entries if entry.error] == []


def test_every_entry_gives_a_reason_and_numbers(whole: Audit) -> None:
    """Only what cannot be checked has no numbers, and what is not simply true says what is."""
    for entry in whole.entries:
        assert entry.outcome is not None
        assert entry.outcome.because, entry.claim.id
        assert entry.outcome.measured or entry.outcome.verdict in (Verdict.NOT_CHECKABLE, Verdict.UNSUPPORTED)
        if entry.outcome.verdict in (Verdict.FALSE, Verdict.LOOSE, Verdict.ASSUMPTION):
            assert entry.claim.corrected, entry.claim.id


def test_the_json_form_is_strict_and_complete(whole: Audit) -> None:
    data = json.loads(whole.to_json(), parse_constant=pytest.fail)
    assert [c["id"] for c in data["claims"]] == [e.claim.id for e in whole.entries]
    assert sum(data["totals"].values()) == len(whole.entries)
    assert data["totals"]["error"] == 0


def test_ids_name_their_paper() -> None:
    """The number of the paper stands before the name."""
    numbers = {key: number for number, key, _ in SOURCES}
    for id, claim in every_claim().items():
        assert id == claim.id
        assert id.startswith("X-" if numbers[claim.paper] == "extensions" else numbers[claim.paper] + "-"), id


def test_code_that_is_named_exists() -> None:
    for claim in every_claim().values():
        for name in claim.code:
            assert located(name).line > 0, claim.id


def test_the_same_numbers_come_out_alone_and_in_another_order(whole: Audit) -> None:
    ids = ["002-est", "001-T20", "001-L1"]
    again = audit(only=ids)
    assert [entry.claim.id for entry in again.entries] == ids
    for id in ids:
        assert again[id].to_dict() == whole[id].to_dict()


def test_generators_are_not_touched() -> None:
    """Neither the global generator nor the default type of floats."""
    before = torch.random.get_rng_state()
    audit(only=["001-L1", "001-L5"])
    assert bool((torch.random.get_rng_state() == before).all())
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, lambda: torch.device("meta")])
def test_the_caller_s_context_does_not_matter(context: Callable[[], AbstractContextManager[object]]) -> None:
    """Gradients off, inference, another device."""
    with context():
        assert audit(only=["001-C14="])["001-C14="].verdict == "false"


def test_a_check_that_raises_is_an_entry_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others still run."""

    def broken() -> Outcome:
        raise RuntimeError("two\nlines")

    old = normalizers.CLAIMS["001-L1"]
    new = Claim(old.id, old.paper, old.place, old.says, old.corrected, broken, old.code)
    monkeypatch.setitem(normalizers.CLAIMS, "001-L1", new)
    found = audit(only=["001-L1", "001-L3"])
    assert (found["001-L1"].verdict, found["001-L1"].error) == ("error", "RuntimeError: two lines")
    assert found["001-L3"].verdict == "loose"
    assert found.totals["error"] == 1
    assert json.loads(found.to_json())["claims"][0]["error"] == "RuntimeError: two lines"


def test_a_verdict_follows_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the printed formula gave the right number the claim would hold."""
    monkeypatch.setattr(normalizers, "batch_norm_printed", lambda var, eps: float((var + eps).rsqrt().max()))
    assert audit(only=["001-L1"])["001-L1"].verdict == "holds"


def test_a_wrong_correction_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """What we state instead is held against the same measurement."""
    monkeypatch.setattr(normalizers, "batch_norm_running", lambda gamma, var, eps: 7.0)
    found = audit(only=["001-L1"])["001-L1"]
    assert found.verdict == "error"
    assert "we state 7.0" in found.error


@pytest.mark.parametrize("paper", [*(source[0] for source in SOURCES), *(source[1] for source in SOURCES)])
def test_a_paper_is_chosen_by_number_or_key(paper: str) -> None:
    chosen = chosen_claims(paper, None)
    assert chosen
    assert len({claim.paper for claim in chosen}) == 1


@pytest.mark.parametrize(
    ("paper", "only", "said"),
    [
        ("than2024", None, "001 (than2025)"),
        ("", None, "Known papers: 000"),
        (None, ["001-l1"], "Did you mean 001-L1"),
        ("002", ["001-L1"], "of the paper 002"),
        (None, [], "empty list"),
        (None, ["001-L1", "nothing"], "'nothing'"),
    ],
)
def test_what_is_not_there_is_said_with_what_is_near(paper: str | None, only: list[str] | None, said: str) -> None:
    with pytest.raises(InputError, match=r"Unknown|at least one") as caught:
        audit(paper, only=only)
    assert said in str(caught.value)


def test_progress_names_each_claim() -> None:
    lines: list[str] = []
    audit(only=["001-L1", "001-L3"], progress=lines.append)
    assert lines == [
        "checking claims: 1 of 2, 001-L1 (Lemma 1)",
        "checking claims: 2 of 2, 001-L3 (Lemma 3)",
    ]


def test_an_entry_without_outcome_is_plain_data() -> None:
    claim = every_claim()["001-L1"]
    assert CheckedClaim(claim, None, "E: no").to_dict()["verdict"] == "error"


def test_one_claim_may_be_named_as_a_string() -> None:
    """It is no list of letters."""
    assert [entry.claim.id for entry in audit(only="001-L1").entries] == ["001-L1"]
