"""Failures are told once, counted in a row, and go no further."""

from __future__ import annotations

import warnings

import pytest

from normscope.monitor.failures import PATIENCE, Failures, MonitorWarning


def _fail(failures: Failures, times: int, **settings: object) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(times):
            with failures.survived("sink Lost", step, **settings):  # type: ignore[arg-type]
                raise ConnectionError("no network")
    return caught


def test_a_row_of_failures_is_told_once_and_given_up_once() -> None:
    notes: list[tuple[str, int]] = []
    gone: list[int] = []
    failures = Failures(lambda message, step: notes.append((message, step)))
    told = _fail(failures, PATIENCE + 2, give_up=lambda: gone.append(1))
    message = "sink Lost of the monitor failed at step 0: ConnectionError: no network"
    assert [(w.category, str(w.message)) for w in told] == [(MonitorWarning, message)]
    assert notes == [(message, 0)]
    assert gone == [1]


def test_success_ends_a_row() -> None:
    gone: list[int] = []
    failures = Failures(lambda message, step: None)
    for _ in range(PATIENCE):
        assert len(_fail(failures, PATIENCE - 1, give_up=lambda: gone.append(1))) == 1
        with failures.survived("sink Lost", 9):
            pass
    assert not gone


def test_a_note_that_fails_is_survived_too() -> None:
    def full(message: str, step: int) -> None:
        raise OSError("no space left")

    assert len(_fail(Failures(full), 2)) == 1


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interrupts_and_exits_get_through(kind: type[BaseException]) -> None:
    failures = Failures(lambda message, step: pytest.fail("no failure"))
    with pytest.raises(kind), failures.survived("probing", 1):
        raise kind


def test_where_warnings_are_errors_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    notes: list[str] = []
    failures = Failures(lambda message, step: notes.append(message))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(2):
            with failures.survived("probing", step):
                raise OSError("gone")
    assert [record.getMessage() for record in caplog.records] == notes
    assert "gone" in notes[0]
    caplog.clear()


def test_what_failed_where_nothing_could_be_given_up_is_given_up_later() -> None:
    gone: list[int] = []
    failures = Failures(lambda message, step: None)
    _fail(failures, PATIENCE + 1)
    _fail(failures, 3, give_up=lambda: gone.append(1))
    assert gone == [1]
