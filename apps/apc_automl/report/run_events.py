"""A run while it goes on, read from the log: events for a live display."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import asyncpg

from apc_automl.report.run_log import LoggedPacket, TransferRecord, logged_packet, transfer_record
from apc_automl.swarm.members import SENTINEL
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, Signal
from apc_log.queries import Position
from apc_log.queries.sessions import BEGINNING, has_run_ended, run_packets, run_transfer_ends

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
