"""What the cluster run counts: from the driver's journal, the log and the handlers' notes to lost, doubled and late.

Pure functions over facts, so that a test can give them doctored ones.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from uuid import UUID

from tests.faults.cluster.notes import EFFECT, Note

STEPS = ("client-starter", "lead", "hand")
"""Who sends the three messages of a session, one each."""
STATE_STEPS = 2
"""Packets that the lead handles in a session, as its state counts them."""
HARMLESS = frozenset({"fenced", "rerun"})
"""Conflicts that a fault explains: what a frozen gate wrote too late, what a handler that ran again would have said."""
HALTED = "HALTED"
ENDED = frozenset({"CLOSED", HALTED})


@dataclass(frozen=True, slots=True)
class Row:
    """A packet of the log; times are seconds of the system clock."""

    session_id: str
    packet_id: UUID
    packet_type: str
    sender: str
    is_accepted: bool
    created_at: float
    judged_at: float
    recorded_at: float


@dataclass(slots=True)
class Asked:
    """A session as the driver was told about it."""

    number: int
    asked_at: float
    session_id: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    is_right: bool | None = None
    """Whether its result is what the input asks for; None = it has none."""
    steps: int | None = None
    """What the result says about the lead's state."""
    halt_reason: str | None = None
    failed_at: list[float] = field(default_factory=list)
    """When calls raised; they were repeated."""
    has_given_up: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that was found after the run."""

    asked: Sequence[Asked]
    rows: Sequence[Row]
    states: dict[str, str]
    """Session -> its state in the log."""
    notes: Sequence[Note]
    conflicts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Account:
    """Lines that name what is wrong; all of them must be empty."""

    lost: list[str]
    doubled: list[str]
    halted: dict[str, int]
    """Reason -> sessions. The run gives no session a cause to halt."""
    wrong: list[str]
    """Results that are not what the input asks for, or that come from a state which misses a step."""
    unexplained_conflicts: dict[str, int]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.doubled or self.halted or self.wrong or self.unexplained_conflicts)


def read_journal(entries: Iterable[Mapping[str, Any]]) -> list[Asked]:
    """Return the sessions of a driver's journal, in the order in which they were asked for."""
    found: dict[int, Asked] = {}
    for entry in entries:
        number, at = entry["number"], entry["at"]
        match entry["what"]:
            case "asked":
                found[number] = Asked(number, at)
            case "started":
                found[number].started_at, found[number].session_id = at, entry["session_id"]
            case "ended":
                one = found[number]
                one.ended_at, one.is_right, one.steps = at, entry["is_right"], entry["steps"]
            case "halted":
                found[number].ended_at, found[number].halt_reason = at, entry["reason"]
            case "failed":
                found[number].failed_at.append(at)
            case "given_up":
                found[number].has_given_up = True
    return list(found.values())


def account_for(facts: Facts) -> Account:
    """Compare what the driver was told, what the log has, and what the handlers did."""
    halted = {session for session, state in facts.states.items() if state == HALTED}
    reasons = Counter(one.halt_reason for one in facts.asked if one.halt_reason is not None)
    unknown = len(halted - {one.session_id for one in facts.asked if one.halt_reason is not None})
    if unknown:
        reasons["halted in the log, and its caller was not told"] = unknown
    return Account(
        lost=_lost(facts, halted),
        doubled=_doubled(facts),
        halted=dict(reasons),
        wrong=_wrong(facts.asked),
        unexplained_conflicts={kind: count for kind, count in facts.conflicts.items() if kind not in HARMLESS},
    )


def _lost(facts: Facts, halted: set[str]) -> list[str]:
    lost: list[str] = []
    accepted = [row for row in facts.rows if row.is_accepted]
    opened = {row.session_id for row in accepted if row.packet_type == "SIGNAL" and row.sender == STEPS[0]}
    given = {row.session_id for row in accepted if row.packet_type == "MESSAGE" and row.sender == STEPS[0]}
    for one in facts.asked:
        if one.has_given_up:
            lost.append(f"job {one.number}: its start was never confirmed")
        elif one.session_id is None:
            lost.append(f"job {one.number}: its start never returned")
        elif one.session_id not in opened or one.session_id not in given:
            lost.append(f"job {one.number}: confirmed, and START or input are not in the log")
        elif facts.states.get(one.session_id) not in ENDED:
            lost.append(f"job {one.number}: its session never ended")
        elif one.session_id not in halted and one.is_right is None:
            lost.append(f"job {one.number}: its session closed, and its caller has no result")
    handled = {note.packet_id for note in facts.notes if note.kind == EFFECT}
    lost += [
        f"packet {row.packet_id} of {row.sender}: accepted and never handled"
        for row in accepted
        if row.packet_type == "MESSAGE" and row.packet_id not in handled and row.session_id not in halted
    ]
    return lost


def _doubled(facts: Facts) -> list[str]:
    rows = Counter((row.session_id, row.packet_id) for row in facts.rows)
    doubled = [f"packet {packet_id}: {count} rows" for (_, packet_id), count in rows.items() if count > 1]
    effects = Counter((note.agent, note.packet_id) for note in facts.notes if note.kind == EFFECT)
    doubled += [
        f"packet {one}: its effect at {agent} was made {n} times" for (agent, one), n in effects.items() if n > 1
    ]
    said = Counter(
        (row.session_id, row.packet_type, row.sender)
        for row in set(facts.rows)
        if row.is_accepted and row.packet_type in ("MESSAGE", "DECISION")
    )
    doubled += [
        f"session {session}: {n} times {what} of {sender}" for (session, what, sender), n in said.items() if n > 1
    ]
    started = Counter(one.session_id for one in facts.asked if one.session_id is not None)
    doubled += [f"session {session}: {count} jobs" for session, count in started.items() if count > 1]
    unconfirmed = sum(one.session_id is None for one in facts.asked)
    foreign = set(facts.states) - set(started)
    if len(foreign) > unconfirmed:
        doubled.append(f"{len(foreign)} sessions that no caller knows, and {unconfirmed} starts without a confirm")
    return doubled


def _wrong(asked: Iterable[Asked]) -> list[str]:
    wrong = [f"job {one.number}: the wrong result" for one in asked if one.is_right is False]
    stale = [one for one in asked if one.steps not in (None, STATE_STEPS)]
    wrong += [f"job {one.number}: its result counts {one.steps} of {STATE_STEPS} steps in the state" for one in stale]
    return wrong


@dataclass(frozen=True, slots=True)
class Window:
    """What happened from one fault to the next. Of a wait counts what lies in this time."""

    started: int
    ended: int
    start_gap: float
    """Longest time without a confirmed start."""
    start_wait: float
    """Longest time that a caller waited for the confirm of its start."""
    accept_wait: float
    """Longest time from the making of a packet to the gate's verdict."""
    commit_wait: float
    """Longest time from a verdict to the commit."""
    handle_wait: float
    """Longest time from a verdict to the effect of the packet's handler, which may run again without making one."""
    failures: int
    """Calls of the driver that raised and were repeated."""


def look_at(facts: Facts, begin: float, end: float) -> Window:
    """Return the figures of the time from `begin` to `end`."""
    effects = {note.packet_id: note.at for note in facts.notes if note.kind == EFFECT}

    def longest(waits: Iterable[tuple[float, float]]) -> float:
        waits = ((early, late) for early, late in waits if early < end and late > begin)
        return max((min(late, end) - max(early, begin) for early, late in waits), default=0.0)

    starts = sorted(one.started_at for one in facts.asked if one.started_at is not None)
    accepted = [row for row in facts.rows if row.is_accepted]
    return Window(
        started=sum(begin <= at < end for at in starts),
        ended=sum(one.ended_at is not None and begin <= one.ended_at < end for one in facts.asked),
        start_gap=longest(pairwise(starts)),
        start_wait=longest((one.asked_at, one.started_at) for one in facts.asked if one.started_at is not None),
        accept_wait=longest((row.created_at, row.judged_at) for row in accepted),
        commit_wait=longest((row.judged_at, row.recorded_at) for row in facts.rows),
        handle_wait=longest((row.judged_at, effects[row.packet_id]) for row in accepted if row.packet_id in effects),
        failures=sum(begin <= at < end for one in facts.asked for at in one.failed_at),
    )
