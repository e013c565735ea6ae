"""One packet under judgement, with everything that the rules read."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, StrEnum, auto
from typing import Any, TypeAlias
from uuid import UUID

from apc_contracts.contract.contract import Contract
from apc_contracts.identity.registry import Registration
from apc_contracts.judging.facts import Facts
from apc_contracts.judging.session_view import NO_LOOP, Identity, LoopState, SessionView
from apc_contracts.judging.verdict import Refusal, VerdictKind
from apc_contracts.packet import Packet
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType


class Stage(StrEnum):
    """When a packet is judged: on arrival; at RESUME, if a pause held it; at its barrier (TRANSFER)."""

    ARRIVAL = "arrival"
    RESUME = "resume"
    BARRIER = "barrier"


Ruling: TypeAlias = Refusal | VerdictKind | None
"""None: the rule has no objection. A kind (held, repeat, rerun) ends the judgement like a refusal."""


class Case:
    """The packet under judgement and its context; rules only read it.

    `sender` is the sender's registration, None without one or without a registry; `parent` is what the session
    remembers of the parent, None when unknown. `generation` is the packet's own, or the closing one at a barrier.
    `loop` and `team` cache the results of the loop guard and of the team's rules, so that the record need not compute
    them again: the only fields that a rule writes.
    """

    __slots__ = (
        "contract",
        "facts",
        "generation",
        "is_from_orchestrator",
        "loop",
        "packet",
        "parent",
        "sender",
        "sender_id",
        "session",
        "team",
    )

    def __init__(
        self,
        packet: Packet,
        session: SessionView | None,
        facts: Facts,
        contract: Contract,
        generation: int | None = None,
    ) -> None:
        trace = packet.trace
        sender_id = packet.sender.agent_id
        parent_id: UUID | None = trace.parent_packet_id
        self.packet = packet
        self.session = session
        self.facts = facts
        self.contract = contract
        self.generation = trace.generation if generation is None else generation
        self.sender_id = sender_id
        self.is_from_orchestrator = sender_id == ORCHESTRATOR
        self.sender: Registration | None = facts.registry.get(sender_id) if facts.registry is not None else None
        self.loop: LoopState = NO_LOOP
        self.team: Any = None
        self.parent: Identity | None = None
        if session is not None and parent_id is not None:
            self.parent = session.identity(parent_id)


class Scope(Flag):
    """When a rule applies: with a registry (live), with a session, to agents but not to the orchestrator."""

    ANY = 0
    LIVE = auto()
    SESSION = auto()
    AGENTS = auto()


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: its refusal code, its function, its scope, and the packet types it applies to."""

    code: str
    judge: Callable[[Case], Ruling]
    scope: Scope = Scope.ANY
    packet_types: frozenset[PacketType] = frozenset(PacketType)
