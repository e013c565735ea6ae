"""The account of the cluster run finds what is lost, doubled, halted and late: shown by doctored facts."""

from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid5

import pytest
from tests.faults.cluster.accounting import STATE_STEPS, Facts, Row, account_for, look_at, read_journal
from tests.faults.cluster.faults import DEAD, FAULTS, chosen
from tests.faults.cluster.notes import EFFECT, RUN, Note, has_effect, read_notes, write_note
from tests.faults.cluster.processes import End
from tests.faults.cluster.report import Outcome, Struck, lines_of, write

NAMES = UUID(int=7)
CLIENT = "client-starter"
HANDLERS = {CLIENT: "lead", "lead": "hand", "hand": "lead"}
"""Who sends a message -> who handles it."""


def named(*words: object) -> UUID:
    """Return an id that follows from words."""
    return uuid5(NAMES, "/".join(map(str, words)))


def session_of(number: int) -> str:
    return f"session-{number}"


def make_journal(number: int, at: float) -> list[dict[str, object]]:
    told: dict[str, object] = {"number": number, "at": at}
    return [
        {"what": "asked"} | told,
        {"what": "failed", "error": "BusError: away"} | told,
        {"what": "started", "session_id": session_of(number)} | told | {"at": at + 0.1},
        {"what": "ended", "is_right": True, "steps": STATE_STEPS} | told | {"at": at + 0.2},
    ]


def make_rows(number: int, at: float) -> list[Row]:
    kinds = [("SIGNAL", CLIENT), *(("MESSAGE", sender) for sender in HANDLERS), ("DECISION", "lead")]
    return [
        Row(session_of(number), named(number, kind, sender), kind, sender, True, at, at + 0.01, at + 0.05)
        for kind, sender in kinds
    ]


def make_facts(count: int = 3) -> Facts:
    """Return the facts of a run in which all went well: a session each second."""
    messages = [
        (named(number, "MESSAGE", sender), agent, number)
        for number in range(count)
        for sender, agent in HANDLERS.items()
    ]
    return Facts(
        asked=read_journal(entry for number in range(count) for entry in make_journal(number, number)),
        rows=[row for number in range(count) for row in make_rows(number, number)],
        states={session_of(number): "CLOSED" for number in range(count)},
        notes=[Note(agent, kind, one, at + 0.02) for one, agent, at in messages for kind in (RUN, EFFECT)],
        conflicts={"rerun": 1, "fenced": 2},
    )


def without_row(kind: str, sender: str) -> Facts:
    facts, gone = make_facts(), named(1, kind, sender)
    return replace(facts, rows=[row for row in facts.rows if row.packet_id != gone])


def with_asked(**changes: object) -> Facts:
    """Change what the driver was told of the second session."""
    facts = make_facts()
    asked = [replace(one, **changes) if one.number == 1 else one for one in facts.asked]  # type: ignore[arg-type]
    return replace(facts, asked=asked)


def test_a_run_in_which_all_went_well_is_clean() -> None:
    account = account_for(make_facts())
    assert account.is_clean, account


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (without_row("SIGNAL", CLIENT), "START or input are not in the log"),
        (without_row("MESSAGE", CLIENT), "START or input are not in the log"),
        (with_asked(session_id=None, started_at=None, is_right=None, has_given_up=True), "never confirmed"),
        (with_asked(session_id=None, started_at=None, is_right=None), "never returned"),
        (with_asked(is_right=None, steps=None), "its caller has no result"),
        (replace(make_facts(), states=make_facts().states | {session_of(1): "OPEN"}), "never ended"),
        (
            replace(
                make_facts(), notes=[one for one in make_facts().notes if one.packet_id != named(1, "MESSAGE", "lead")]
            ),
            "of lead: accepted and never handled",
        ),
    ],
    ids=["no START", "no input", "given up", "a call that never returned", "no result", "an open session", "no effect"],
)
def test_what_is_lost_is_found(facts: Facts, found: str) -> None:
    account = account_for(facts)
    assert [found in line for line in account.lost] == [True]
    assert not account.halted and not account.wrong


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (replace(make_facts(), rows=[*make_facts().rows, make_rows(1, 1)[0]]), "2 rows"),
        (
            replace(make_facts(), notes=[*make_facts().notes, make_facts().notes[1]]),
            "its effect at lead was made 2 times",
        ),
        (
            replace(make_facts(), rows=[*make_facts().rows, replace(make_rows(1, 1)[2], packet_id=named("another"))]),
            "2 times MESSAGE of lead",
        ),
        (
            replace(make_facts(), rows=[*make_facts().rows, replace(make_rows(1, 1)[-1], packet_id=named("another"))]),
            "2 times DECISION of lead",
        ),
        (replace(make_facts(), states=make_facts().states | {"session-x": "CLOSED"}), "sessions that no caller knows"),
        (with_asked(session_id=session_of(0)), "session-0: 2 jobs"),
    ],
    ids=["a row", "an effect", "a message", "a result", "a session beside the key", "a session of two keys"],
)
def test_what_is_doubled_is_found(facts: Facts, found: str) -> None:
    assert any(found in line for line in account_for(facts).doubled)


def test_a_halted_session_is_told_with_its_reason_once() -> None:
    halted = replace(
        with_asked(halt_reason="NOT_STARTED", is_right=None), states=make_facts().states | {session_of(1): "HALTED"}
    )
    account = account_for(halted)
    assert account.halted == {"NOT_STARTED": 1} and not account.lost

    untold = replace(make_facts(), states=make_facts().states | {session_of(1): "HALTED"})
    assert account_for(untold).halted == {"halted in the log, and its caller was not told": 1}


@pytest.mark.parametrize("change", [{"is_right": False}, {"steps": 1}])
def test_a_wrong_result_is_found(change: dict[str, object]) -> None:
    assert len(account_for(with_asked(**change)).wrong) == 1


def test_a_conflict_that_no_fault_explains_is_found() -> None:
    facts = replace(make_facts(), conflicts={"fenced": 1, "duplicate_id": 2})
    assert account_for(facts).unexplained_conflicts == {"duplicate_id": 2}


def test_waits_count_from_the_fault_on() -> None:
    facts = make_facts(8)
    late = replace(
        facts, rows=[replace(row, judged_at=5.5) if row.session_id == session_of(2) else row for row in facts.rows]
    )
    calm, during = look_at(late, 0, 1.5), look_at(late, 4, 6)
    assert calm.started == 2 and calm.accept_wait == pytest.approx(0.01)
    assert during.accept_wait == pytest.approx(1.5), "it waited since 2, and the fault came at 4"
    assert look_at(late, 4, 5).accept_wait == pytest.approx(1.0), "the rest of it lies in the next window"
    assert look_at(late, 6, 7).accept_wait == pytest.approx(0.01)
    assert during.failures == 2, "each caller failed once"
    assert during.start_gap == pytest.approx(1.0)
    assert look_at(facts, 4, 6).handle_wait == pytest.approx(0.01)
    again = replace(facts, notes=[*facts.notes, Note("lead", RUN, named(4, "MESSAGE", CLIENT), 5.0)])
    assert look_at(again, 4, 6).handle_wait == pytest.approx(0.01), "what counts is its effect"
    slow = [replace(note, at=5.0) if note.packet_id == named(4, "MESSAGE", CLIENT) else note for note in facts.notes]
    assert look_at(replace(facts, notes=slow), 4, 6).handle_wait == pytest.approx(0.99)


def test_notes_are_read_as_they_were_written(tmp_path: Path) -> None:
    packet = named("packet")
    write_note(tmp_path, "lead", RUN, packet, 1.5)
    assert not has_effect(tmp_path, "lead", packet)
    write_note(tmp_path, "lead", EFFECT, packet, 2.0)
    assert has_effect(tmp_path, "lead", packet) and not has_effect(tmp_path, "hand", packet)
    assert list(read_notes(tmp_path)) == [Note("lead", RUN, packet, 1.5), Note("lead", EFFECT, packet, 2.0)]


def test_faults_are_chosen_by_name() -> None:
    assert chosen(None) == chosen("") == list(FAULTS)
    assert [one.name for one in chosen("full-stop, kill-gate")] == ["full-stop", "kill-gate"]
    with pytest.raises(ValueError, match="no such fault: kill-gates; there are kill-leader"):
        chosen("kill-gates")


def make_outcome(facts: Facts, **changes: object) -> Outcome:
    (fault,) = chosen("kill-gate")
    outcome = Outcome(
        facts=facts,
        account=account_for(facts),
        struck=[Struck(fault, 1.5, "gate-1")],
        began=0,
        driven_until=3,
        ends=[],
        exit_codes={"driver": 0, "gate-1": 0},
        verified=(0, "whole"),
    )
    return replace(outcome, **changes)  # type: ignore[arg-type]


def test_the_report_of_a_clean_run(tmp_path: Path) -> None:
    outcome = make_outcome(make_facts())
    assert outcome.violations == []
    lines = list(lines_of(outcome))
    assert any("kept: accept 0.01 <= 1 s" in line for line in lines)
    assert {"lost 0", "doubled 0", "halted 0", "ended by themselves 0"} <= set(lines)
    write(outcome, tmp_path / "cluster.json")
    assert '"violations": []' in (tmp_path / "cluster.json").read_text()


def test_the_report_says_what_is_wrong() -> None:
    facts = replace(make_facts(), states=make_facts().states | {session_of(1): "OPEN"})
    struck = Struck(chosen("kill-gate")[0], 1.5, None, "TimeoutError: no gate")
    outcome = make_outcome(
        facts, ends=[End("gate-1", 0, 2.0, "")], exit_codes={"gate-1": None, "worker-1": None, "gate-2": 1},
        verified=(1, "two rows"), struck=[struck],
    )  # fmt: skip
    assert outcome.violations == [
        "lost: 1",
        "gate-1 ended by itself with 0",
        "worker-1 left with None after SIGTERM",
        "gate-2 left with 1 after SIGTERM",
        "`apc log verify` exits with 1",
        "not exercised: kill-gate: TimeoutError: no gate",
    ]


def test_a_missed_promise_is_told() -> None:
    facts = make_facts()
    slow = [replace(row, judged_at=row.created_at + DEAD.seconds + 1) for row in facts.rows]
    assert any("MISSED: accept 1.50 <= 1 s" in line for line in lines_of(make_outcome(replace(facts, rows=slow))))
