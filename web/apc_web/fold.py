"""A session after each entry of its log: what the fold reads of an entry, the fold, and its snapshots in memory."""

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

import asyncpg
import orjson

from apc_contracts.contract.contract import Contract
from apc_contracts.vocabulary import CONTROL_TYPES, ORCHESTRATOR
from apc_log.body_encryption import is_sealed
from apc_log.queries.session_pages import HopCount, PacketCount
from apc_web.models import FoldEntry, SessionAt


def fold_entry(row: asyncpg.Record, contract: Contract) -> FoldEntry:
    """Return an entry of the log; what a sealed body would tell is left out."""
    payload = _payload(row["body"])
    start = payload.get("session")
    phase = row["run_phase"]
    if row["kind"] == "coordination" and row["to_state"] is not None:
        of_state = contract.phase_of(row["to_state"])
        phase = None if of_state is None else of_state.value
    read = {
        "run_phase": phase,
        "recipients": row["recipients"] or [],
        "usage": _usage(orjson.loads(row["metadata"] or "{}")),
        "start": _start(start) if isinstance(start, dict) else None,
        "signal": payload.get("signal"),
    }
    return FoldEntry.model_validate(dict(row) | read)


def _payload(body: bytes | None) -> Mapping[str, Any]:
    if body is None or is_sealed(body):
        return {}
    try:
        payload = orjson.loads(body)["payload"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return {}
    return payload if isinstance(payload, dict) and isinstance(payload.get("signal"), str) else {}


def _start(spec: Mapping[str, Any]) -> dict[str, object]:
    swarms = {one["swarm_id"]: list(one["agents"]) for one in spec.get("swarms", ())}
    return {"budgets": dict(spec.get("budgets") or {}), "swarms": swarms}


def _usage(metadata: Mapping[str, Any]) -> dict[str, float] | None:
    """Return the usage that was charged: what was reported without what was refused."""
    reported, refused = metadata.get("usage"), metadata.get("usage_refused") or {}
    if not isinstance(reported, dict):
        return None
    return {
        name: float(reported[name]) - float(refused.get(name, 0)) for name in ("tokens", "cost") if name in reported
    }


# The fold, from recorded columns alone; nothing is judged again. The page has the same fold in TypeScript;
# `fold_vectors.json` holds entries and the states that both must reach.

Number = TypeVar("Number", int, float)

FIRST_STATE = "SESSION_OPEN"
"""A session is in it once its START was accepted."""
_FREE_TYPES = frozenset(str(one) for one in CONTROL_TYPES)


@dataclass(slots=True)
class Folded:
    """A session after some entries."""

    seq: int = 0
    at: datetime | None = None
    state: str | None = None
    run_phase: str | None = None
    is_paused: bool = False
    round: int = 1
    generation: int = 0
    step: int = 0
    entries: int = 0
    packets: int = 0
    verdicts: dict[str, int] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    deliveries: dict[str, int] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    budgets: dict[str, float] | None = None
    swarms: dict[str, list[str]] | None = None

    def copy(self) -> "Folded":
        """Return a copy that can be folded on by itself."""
        return replace(
            self,
            verdicts=dict(self.verdicts),
            types=dict(self.types),
            refusals=dict(self.refusals),
            sent=dict(self.sent),
            deliveries=dict(self.deliveries),
            spent=dict(self.spent),
        )

    def take(self, entry: FoldEntry) -> None:
        """Fold the next entry of the session."""
        self.seq, self.at = entry.seq, entry.at
        self.entries += 1
        if entry.kind == "packet":
            self._packet(entry)
        elif entry.kind == "hop":
            self._hop(entry)
        else:
            self._move(entry)

    def shown(self, session_id: str, shard: int) -> SessionAt:
        """Return the state as the API has it."""
        return SessionAt.of(self, session_id=session_id, shard=shard)

    def take_packets(self, counted: PacketCount) -> None:
        """Fold packets that cannot be told apart; none of them moves the session."""
        self.entries += counted.count
        self._packets(
            counted.packet_type, counted.sender_agent_id, counted.verdict, counted.refusal_code, counted.count
        )

    def take_hops(self, counted: HopCount) -> None:
        """Fold hops that cannot be told apart, or the recipients of those that routed a packet."""
        self.entries += counted.count
        usage = {"tokens": counted.tokens, "cost": counted.cost}
        for name, amount in usage.items():
            if amount is not None:
                _add(self.spent, name, amount)
        self._ruling(counted.verdict, counted.refusal_code, counted.count)
        if counted.is_whole:
            _add(self.deliveries, "ROUTED", counted.recipients)
        else:
            self._delivery(counted.from_state, counted.to_state, counted.count)

    def _packet(self, entry: FoldEntry) -> None:
        verdict = entry.verdict or ""
        self._packets(entry.packet_type or "", entry.sender or "", verdict, entry.refusal_code, 1)
        if verdict == "accepted" and entry.signal is not None:
            self._signal(entry)

    def _packets(self, kind: str, sender: str, verdict: str, code: str | None, count: int) -> None:
        self.packets += count
        _add(self.types, kind, count)
        _add(self.sent, sender, count)
        _add(self.verdicts, verdict, count)
        if verdict == "refused":
            _add(self.refusals, code or "", count)
        elif sender != ORCHESTRATOR and kind not in _FREE_TYPES:
            _add(self.spent, "packets", count)

    def _signal(self, entry: FoldEntry) -> None:
        if entry.signal == "START" and self.state is None:
            self.state, self.run_phase = FIRST_STATE, entry.run_phase
            start = entry.start or {}
            budgets, swarms = start.get("budgets"), start.get("swarms")
            self.budgets = dict(budgets) if isinstance(budgets, dict) else None
            self.swarms = dict(swarms) if isinstance(swarms, dict) else None
        elif entry.signal in ("PAUSE", "RESUME"):
            self.is_paused = entry.signal == "PAUSE"

    def _hop(self, entry: FoldEntry) -> None:
        for name, amount in (entry.usage or {}).items():
            _add(self.spent, name, amount)
        self._ruling(entry.verdict, entry.refusal_code, 1)
        if entry.recipient:
            self._delivery(entry.from_state or "", entry.to_state or "", 1)
        elif entry.to_state == "ROUTED":
            _add(self.deliveries, "ROUTED", len(entry.recipients))

    def _ruling(self, verdict: str | None, code: str | None, count: int) -> None:
        """Replace "held" by the final verdict."""
        if verdict is None:
            return
        _add(self.verdicts, "held", -count)
        _add(self.verdicts, verdict, count)
        if verdict == "refused":
            _add(self.refusals, code or "", count)

    def _delivery(self, from_state: str, to_state: str, count: int) -> None:
        if to_state:
            _add(self.deliveries, from_state, -count)
            _add(self.deliveries, to_state, count)

    def _move(self, entry: FoldEntry) -> None:
        self.state = entry.to_state
        self.run_phase = entry.run_phase or self.run_phase
        self.round = entry.round if entry.round is not None else self.round
        self.generation = entry.generation if entry.generation is not None else self.generation
        self.step = entry.step if entry.step is not None else self.step


def _add(counts: dict[str, Number], name: str, amount: Number) -> None:
    """Add to a count; a count of zero is left out."""
    total = counts[name] + amount if name in counts else amount
    if total:
        counts[name] = total
    else:
        counts.pop(name, None)


# Snapshots of folded sessions in the server's memory: one about every 500 entries.

EVERY = 500
"""Entries between two snapshots."""
MOST_SESSIONS = 32
"""Sessions whose snapshots are kept; the one that was asked for longest ago is forgotten first."""
MOST_SNAPSHOTS = 2_000
"""Snapshots of one session: when there are as many, every second one is forgotten."""


@dataclass(slots=True)
class SessionSnapshots:
    """Snapshots of one session, in the order of the log."""

    seqs: list[int] = field(default_factory=list)
    states: list[Folded] = field(default_factory=list)
    reached: int = 0
    """All entries up to this position are in a snapshot, or in none because there were too few."""
    growing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Only one request makes further snapshots."""

    def before(self, seq: int) -> Folded:
        """Return a copy of the last snapshot that is before a position."""
        at = bisect_left(self.seqs, seq)
        return self.states[at - 1].copy() if at else Folded()

    def keep(self, state: Folded) -> None:
        """Keep a copy of a state, if it is a further one."""
        if self.seqs and state.seq <= self.seqs[-1]:
            return
        if len(self.seqs) >= MOST_SNAPSHOTS:
            del self.seqs[::2], self.states[::2]
        self.seqs.append(state.seq)
        self.states.append(state.copy())


class Snapshots:
    """The snapshots of the sessions that were asked for last."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, SessionSnapshots] = OrderedDict()

    def of(self, session_id: str) -> SessionSnapshots:
        """Return the snapshots of a session."""
        snapshots = self._sessions.setdefault(session_id, SessionSnapshots())
        self._sessions.move_to_end(session_id)
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return snapshots
