"""What a run says while it goes on: the best model in a unit that people know, the time left, transfers, refusals."""

from collections.abc import AsyncIterator

import pytest

from apc_automl.report.run_log import (
    Event,
    ModelMeasured,
    RefusalTold,
    Synced,
    TransferRecord,
    TransferRuled,
    Validated,
)
from apc_automl.run.status import RunStatus, show_run

DISCOVERY = "INDEPENDENT_DISCOVERY"
SCORED = ModelMeasured("trees", 1, 0, 0.8, "forest", "accuracy 91.0%")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def status_at(clock: Clock, generations: int = 11, budget: int = 100) -> RunStatus:
    return RunStatus(generations, budget, clock)


def synced(state: str, generation: int, round_number: int = 1) -> Synced:
    return Synced(state, round_number, generation, {})


def transfer(reason: str | None) -> TransferRuled:
    record = TransferRecord(
        1, 11, "linear", "trees", "sha256:" + "a" * 64, 0.9, 0.5, is_accepted=reason is None, reason=reason
    )
    return TransferRuled(record)


def test_the_time_left_follows_the_pace_of_the_generations() -> None:
    clock = Clock()
    status = status_at(clock)
    clock.now = 10
    status.take(synced(DISCOVERY, 0))
    assert status.seconds_left == 90, "no generation has been measured: all of the search time"
    clock.now = 14
    status.take(synced(DISCOVERY, 2))
    assert status.seconds_left == 2 * 9


def test_the_time_left_never_exceeds_the_search_time() -> None:
    clock = Clock()
    status = status_at(clock)
    status.take(synced(DISCOVERY, 0))
    clock.now = 90
    status.take(synced(DISCOVERY, 1))
    assert status.seconds_left == 10
    clock.now = 200
    assert status.seconds_left == 0


def test_no_time_is_promised_when_nothing_is_searched() -> None:
    status = status_at(Clock())
    status.take(synced("SESSION_OPEN", 0))
    assert status.time_left == "the search has not begun"
    status.take(SCORED)
    status.take(synced("VALIDATION", 4))
    assert status.time_left == "the search is over"


def test_a_new_round_has_its_own_pace() -> None:
    clock = Clock()
    status = status_at(clock)
    status.take(synced(DISCOVERY, 0))
    clock.now = 50
    status.take(synced(DISCOVERY, 0, round_number=2))
    clock.now = 51
    status.take(synced(DISCOVERY, 1, round_number=2))
    assert status.seconds_left == 10


def test_the_best_model_stays_when_a_worse_one_comes() -> None:
    status = status_at(Clock())
    assert status.best_words == "no model yet"
    status.take(SCORED)
    status.take(ModelMeasured("trees", 1, 1, 0.7, "forest", "accuracy 85.0%"))
    status.take(ModelMeasured("linear", 1, 1, 0.75, "ridge", "accuracy 88.0%"))
    assert status.best_words == "best accuracy 91.0% (trees)"


def test_an_outcome_without_a_score_is_still_shown() -> None:
    status = status_at(Clock())
    status.take(ModelMeasured("trees", 1, 0, 0.8, "forest", ""))
    assert status.best_words == "best outcome 0.800 (trees)"


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (transfer(None), "transfer linear -> trees, generation 11: accepted"),
        (
            transfer("THROTTLE_SCORE: 0.9 is not above"),
            "transfer linear -> trees, generation 11: refused, THROTTLE_SCORE: 0.9 is not above",
        ),
        (
            RefusalTold("builder-x", "IDEA", "ROLE_FORBIDDEN", "no"),
            "refused: IDEA of builder-x, ROLE_FORBIDDEN: no",
        ),
        (
            Validated(1, 0.8, False, "accuracy 91.0%"),
            "round 1: the final model failed the gate on untouched rows (accuracy 91.0%)",
        ),
        (SCORED, None),
    ],
)
def test_each_transfer_and_refusal_is_a_line(event: Event, line: str | None) -> None:
    assert status_at(Clock()).notice(event) == line


async def events() -> AsyncIterator[Event]:
    for event in (synced(DISCOVERY, 0), SCORED, transfer(None), synced(DISCOVERY, 1), synced("ARBITRATION", 1)):
        yield event


async def test_lines_go_to_stderr_and_quiet_prints_none(capsys: pytest.CaptureFixture[str]) -> None:
    status = status_at(Clock())
    await show_run(events(), status)
    printed = capsys.readouterr()
    assert printed.out == ""
    opened, moved, synced_again, arbitrated = printed.err.splitlines()
    assert opened == "  0.0 s  INDEPENDENT_DISCOVERY: each swarm searches by itself, about 100 s left"
    assert moved.endswith("accepted")
    assert synced_again == "  0.0 s    generation 1/10: best accuracy 91.0% (trees), about 0 s left"
    assert arbitrated == "  0.0 s  ARBITRATION: the search is over; best accuracy 91.0% (trees)"

    quiet = status_at(Clock())
    await show_run(events(), quiet, quiet=True)
    assert capsys.readouterr().err == ""
    assert quiet.generation == 1, "a quiet run is followed to its end"
