"""A run as its log tells it: events while it goes on, and everything once it has ended."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg

from apc_automl.swarm.briefs import CANDIDATES, LIBRARIAN, SEED, SENTINEL, number_in
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, Signal
from apc_log.queries import Position
from apc_log.queries.sessions import (
    BEGINNING,
    count_run_packets,
    has_run_ended,
    run_moves,
    run_packets,
    run_transfer_ends,
)

READ_TYPES = ("TASK_IR", "IDEA", "ARTIFACT", "EVAL", "CLAIM", "TRANSFER", "SIGNAL")
OFFER_FIELDS = {"from_swarm", "to_swarm", "protocol_id", "sender_score", "receiver_score"}


@dataclass(frozen=True)
class LoggedPacket:
    """A row of agent_packets with its decoded body."""

    packet_id: UUID
    packet_type: str
    run_phase: str
    round: int
    generation: int
    sender: str
    swarm: str
    verdict: str
    refusal: Mapping[str, Any] | None
    body: Mapping[str, Any]
    shard: int = 0
    seq: int = 0
    """Its place in the log of the shard."""

    @property
    def payload(self) -> Mapping[str, Any]:
        """The payload as JSON."""
        payload: Mapping[str, Any] = self.body["payload"]
        return payload

    @property
    def is_offer(self) -> bool:
        """Whether this is a TRANSFER with all its fields; a refused one may lack some."""
        return self.packet_type == "TRANSFER" and OFFER_FIELDS <= self.payload.keys()

    @property
    def evidence(self) -> tuple[str, ...]:
        """The evidence refs of its proof bundle."""
        return tuple(self.body.get("proof_bundle", {}).get("evidence_refs", ()))


@dataclass(frozen=True)
class TransferRecord:
    """A TRANSFER and what became of it; `reason` names the refusal."""

    round: int
    generation: int
    from_swarm: str
    to_swarm: str
    protocol_id: str
    sender_score: float
    receiver_score: float
    is_accepted: bool
    reason: str | None
    was_held: bool = False
    """Judged at a barrier, not on arrival."""


@dataclass(frozen=True)
class Move:
    """A transition or barrier of the session."""

    event: str
    to_state: str
    round: int
    generation: int
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class RunLog:
    """Everything the summary and the report need of a run's log."""

    run_id: str
    session_ids: tuple[str, ...]
    packets: tuple[LoggedPacket, ...]
    transfers: tuple[TransferRecord, ...]
    moves: tuple[Move, ...]
    counts: Mapping[tuple[str, str], int]
    """(packet type, verdict on arrival) -> packets in the log."""

    def of(self, packet_type: str, run_phase: str | None = None) -> list[LoggedPacket]:
        """Return the packets of a type, and of a phase, that were not refused."""
        return [
            packet
            for packet in self.packets
            if packet.packet_type == packet_type
            and packet.verdict != "refused"
            and run_phase in (None, packet.run_phase)
        ]

    @property
    def refused(self) -> int:
        """How many packets were refused: on arrival, and TRANSFERs at their barrier."""
        on_arrival = sum(count for (_, verdict), count in self.counts.items() if verdict == "refused")
        return on_arrival + sum(one.was_held and not one.is_accepted for one in self.transfers)

    @property
    def evaluations(self) -> list[LoggedPacket]:
        """The EVALs of the builders' generations, in the order of the log."""
        phases = ("DISCOVERY", "REFINEMENT", "CONVERGENCE")
        return [one for one in self.of("EVAL") if one.run_phase in phases and one.sender != SENTINEL]

    @property
    def promoted(self) -> LoggedPacket | None:
        """The orchestrator's ARTIFACT of kind PROTOCOL."""
        return next((one for one in self.of("ARTIFACT") if one.sender == ORCHESTRATOR), None)

    @property
    def all_rows(self) -> LoggedPacket | None:
        """The librarian's ARTIFACT of the model that was trained on every row."""
        found = [one for one in self.of("ARTIFACT", "PROMOTION") if one.sender == LIBRARIAN]
        return found[-1] if found and self.promoted is not None else None

    @property
    def facts(self) -> tuple[str, ...]:
        """What the briefs say of the table, for people: kind of problem, sizes of the parts, notes."""
        return tuple(expression for name, expression in self._said.items() if name.startswith("table-"))

    @property
    def seed(self) -> int:
        """The seed that the brief names; 0 in a log without one."""
        return number_in(self._said, SEED)

    @property
    def candidates(self) -> int:
        """How many methods a swarm cross-validated in each generation before it trained the best of them."""
        return number_in(self._said, CANDIDATES, 1)

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The SessionSpec of START; empty in a log without one."""
        starts = [one for one in self.of("SIGNAL") if one.payload.get("signal") == Signal.START]
        return starts[0].payload["session"] if starts else {}

    @property
    def brief(self) -> Mapping[str, str]:
        """Evidence id -> hash, as the sentinel's brief names them: `schema`, slices, priors."""
        return {one["id"]: one["ref"] for one in self._brief_objects if "ref" in one}

    @property
    def _said(self) -> Mapping[str, str]:
        return {one["id"]: one["expression"] for one in self._brief_objects if "expression" in one}

    @property
    def _brief_objects(self) -> list[Mapping[str, Any]]:
        briefs = [one for one in self.of("TASK_IR") if one.payload["ir_header"]["swarm_id"] == SENTINEL]
        return list(briefs[0].payload["objects"]) if briefs else []

    @property
    def used_priors(self) -> bool:
        """Whether a brief named recipes of earlier runs."""
        objects = [thing for one in self.of("TASK_IR") for thing in one.payload["objects"]]
        return any(str(thing.get("id", "")).startswith("prior-") for thing in objects)

    @property
    def validations(self) -> list[LoggedPacket]:
        """The EVALs that judged a final model, the last one last."""
        return [one for one in self.of("EVAL", "VALIDATION") if one.sender == SENTINEL]


async def read_run(pool: asyncpg.Pool, run_id: str) -> RunLog:
    """Read a run from the log. A run that the log does not know has no packets."""
    rows = await run_packets(pool, run_id, READ_TYPES)
    packets = tuple(logged_packet(row) for row in rows)
    ends = await run_transfer_ends(pool, run_id)
    moves = await run_moves(pool, run_id)
    return RunLog(
        run_id=run_id,
        session_ids=tuple(sorted({row["session_id"] for row in rows})),
        packets=packets,
        transfers=tuple(
            transfer_record(packet, *ends.get(packet.packet_id, ("", None))) for packet in packets if packet.is_offer
        ),
        moves=tuple(
            Move(row["event"], row["to_state"], row["round"], row["generation"], json.loads(row["facts"]))
            for row in moves
        ),
        counts=await count_run_packets(pool, run_id),
    )


def logged_packet(row: Any) -> LoggedPacket:
    """Return the packet in a row of `apc_log.queries.sessions.run_packets`."""
    return LoggedPacket(
        packet_id=row["packet_id"],
        packet_type=row["packet_type"],
        run_phase=row["run_phase"],
        round=row["round"],
        generation=row["generation"],
        sender=row["sender_agent_id"],
        swarm=row["sender_swarm_id"],
        verdict=row["verdict"],
        refusal=json.loads(row["refusal"]) if row["refusal"] else None,
        body=_body_of(row),
        shard=row["shard"],
        seq=row["seq"],
    )


def _body_of(row: Any) -> Mapping[str, Any]:
    """Return the decoded body. Of a large refused packet only the beginning is stored; nothing is read of it."""
    try:
        body = json.loads(row["body"])
    except ValueError:
        if row["verdict"] != "refused":
            raise
        return {"payload": {}}
    return body if isinstance(body, dict) else {"payload": {}}


def transfer_record(packet: LoggedPacket, state: str = "", metadata: str | None = None) -> TransferRecord:
    """Return a TRANSFER with its ruling: on arrival, or at the last hop of the whole packet."""
    refusal = packet.refusal or (json.loads(metadata).get("refusal") if metadata else None)
    is_open = packet.verdict == "held" and state in ("", "SCHEMA_VALIDATED")
    reason = f"{refusal['code']}: {refusal['message']}" if refusal else "the run ended before its barrier"
    is_accepted = refusal is None and not is_open
    payload = packet.payload
    return TransferRecord(
        round=packet.round,
        generation=packet.generation,
        from_swarm=payload["from_swarm"],
        to_swarm=payload["to_swarm"],
        protocol_id=payload["protocol_id"],
        sender_score=payload["sender_score"],
        receiver_score=payload["receiver_score"],
        is_accepted=is_accepted,
        reason=None if is_accepted else reason,
        was_held=packet.verdict == "held",
    )


FOLLOWED_TYPES = tuple(PacketType)
"""All of them: a refused packet of any type is an event."""


@dataclass(frozen=True)
class Synced:
    """The session has reached a state or a generation."""

    state: str
    round: int
    generation: int
    scores: dict[str, float]


@dataclass(frozen=True)
class ModelMeasured:
    """A swarm has measured its model of a generation; `outcome` in 0..1 on held-out data."""

    swarm: str
    round: int
    generation: int
    outcome: float
    method: str
    score: str
    """In a unit that people know, such as `accuracy 96.5%`."""


@dataclass(frozen=True)
class TransferRuled:
    """The gate has ruled on a recipe that a swarm offered to another: on arrival or at the barrier."""

    record: TransferRecord


@dataclass(frozen=True)
class RefusalTold:
    """The gate has refused a packet that is no TRANSFER."""

    sender: str
    packet_type: str
    code: str
    message: str


@dataclass(frozen=True)
class Validated:
    """The sentinel has judged a final model on untouched data."""

    round: int
    outcome: float
    passed: bool
    score: str


Event = Synced | ModelMeasured | TransferRuled | RefusalTold | Validated


async def follow_run(
    pool: asyncpg.Pool, run_id: str, poll: timedelta = timedelta(milliseconds=250)
) -> AsyncIterator[Event]:
    """Yield every event of a run, in the order of the log, from its beginning; ends when its session has ended.

    A run that has not begun is waited for.
    """
    place = BEGINNING
    held: dict[UUID, LoggedPacket] = {}
    while True:
        is_over = await has_run_ended(pool, run_id)
        for row in await run_packets(pool, run_id, FOLLOWED_TYPES, place):
            place = Position(row["shard"], row["seq"])
            packet = logged_packet(row)
            if packet.packet_type == "TRANSFER" and packet.verdict == "held":
                held[packet.packet_id] = packet
            else:
                for event in _events(packet):
                    yield event
        for ruled in await _ruled(pool, run_id, held):
            yield ruled
        if is_over:
            return
        await asyncio.sleep(poll.total_seconds())


async def _ruled(pool: asyncpg.Pool, run_id: str, held: dict[UUID, LoggedPacket]) -> list[TransferRuled]:
    """Return the held TRANSFERs whose barrier has come, and take them out."""
    found = []
    ends = await run_transfer_ends(pool, run_id) if held else {}
    for packet_id, (state, metadata) in ends.items():
        if packet_id in held and state != "SCHEMA_VALIDATED":
            found.append(TransferRuled(transfer_record(held.pop(packet_id), state, metadata)))
    return found


def _events(packet: LoggedPacket) -> Sequence[Event]:
    """Return what a packet tells: nothing or one event."""
    if packet.is_offer:
        return [TransferRuled(transfer_record(packet))]
    if packet.verdict == "refused":
        refusal = packet.refusal or {}
        code, message = str(refusal.get("code", "")), str(refusal.get("message", ""))
        return [RefusalTold(packet.sender, packet.packet_type, code, message)]
    match packet.packet_type:
        case "SIGNAL" if packet.payload["signal"] == Signal.SYNC and packet.sender == ORCHESTRATOR:
            session = packet.payload["session"]
            return [Synced(session["state"], session["round"], session["generation"], session["scores"])]
        case "EVAL" if packet.run_phase != "EXECUTION":
            return _of_evaluation(packet)
    return []


def _of_evaluation(packet: LoggedPacket) -> Sequence[Event]:
    outcome, notes = packet.payload["metric_set"]["outcome"], packet.payload.get("notes") or [""]
    score = _score_of(notes[-1])
    if packet.run_phase == "VALIDATION":
        return [Validated(packet.round, outcome, packet.payload["pass"], score)]
    if packet.sender == SENTINEL:
        return []
    return [ModelMeasured(packet.swarm, packet.round, packet.generation, outcome, notes[0], score)]


def _score_of(note: str) -> str:
    """Return the score in a loss note (`statements.loss_note`); empty in a note without one."""
    score, between, _ = note.partition("; ")
    return score if between else ""
