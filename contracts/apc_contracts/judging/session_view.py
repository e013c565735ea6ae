"""What the admission rules may read from a session."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Protocol
from uuid import UUID

import msgspec

from apc_contracts.judging.dossier import Dossier, Said
from apc_contracts.judging.verdict import Refusal, VerdictKind
from apc_contracts.packet import Packet
from apc_contracts.vocabulary import PacketType, RunPhase

# Loops: the same content from one sender, and senders who answer each other with nothing new.
#
# An *idle chain* runs through causes or parents since a packet last brought a symbolic key or an evidence_ref that the
# session had not seen. A sender who speaks again in a chain, after somebody else, takes one *idle turn*: a cycle of n
# senders takes n idle turns per round.

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class IdleChain:
    """The chain that a packet extends: its idle turns so far, and who has spoken."""

    idle_turns: int
    voices: frozenset[str]


@dataclass(frozen=True, slots=True)
class LoopState:
    """What the session remembers about one packet for the loop guard.

    `repeats` counts admitted packets of the same sender, payload, recipients and generation since the session's
    generation opened; `chain` is None when the packet begins one.
    """

    repeats: int = 0
    chain: IdleChain | None = None

    @property
    def idle_turns(self) -> int:
        """The idle turns of the chain, 0 without one."""
        return 0 if self.chain is None else self.chain.idle_turns

    @property
    def record(self) -> Record:
        """The JSON form for the log; empty when there is nothing to record."""
        record: Record = {"repeats": self.repeats} if self.repeats else {}
        if self.chain is not None:
            record |= {"idle_turns": self.chain.idle_turns, "voices": sorted(self.chain.voices)}
        return record


NO_LOOP = LoopState()


def read_loop(record: Record | None) -> LoopState:
    """Return the state recorded by `LoopState.record`; `NO_LOOP` for None."""
    if not record:
        return NO_LOOP
    chain = _idle_chain(record["idle_turns"], *record["voices"]) if "voices" in record else None
    return LoopState(record.get("repeats", 0), chain)


# Memoised: thousands of packets extend the same few chains, and each is kept as long as its packet is remembered.
@lru_cache(4096)
def extend(before: IdleChain | None, last_speaker: str, sender: str) -> IdleChain | None:
    """Return the chain after a packet with nothing new; `before` and `last_speaker` are those of what it answers.

    None while there is one voice: a sender that continues alone takes no idle turns.
    """
    if before is None:
        return None if sender == last_speaker else _idle_chain(0, *sorted((last_speaker, sender)))
    if sender == last_speaker:
        return before
    turns = before.idle_turns + (sender in before.voices)
    return _idle_chain(turns, *sorted(before.voices | {sender}))


def longest(chains: Iterable[IdleChain | None]) -> IdleChain | None:
    """Return the chain with the most idle turns: naming another parent than the cause does not restart the count."""
    return max((one for one in chains if one is not None), key=lambda one: one.idle_turns, default=None)


@lru_cache(4096)
def _idle_chain(idle_turns: int, *voices: str) -> IdleChain:
    return IdleChain(idle_turns, frozenset(voices))


class Identity(msgspec.Struct):
    """What is remembered of every packet of a session that took an id."""

    packet_hash: bytes
    payload_hash: bytes
    packet_type: PacketType
    sender: str
    swarm_id: str
    recipients: tuple[str, ...]
    """The resolved recipients: `_all` is expanded, `_substrate` and `orchestrator` are kept as they are."""
    addressed: tuple[str, ...]
    """The recipients as the packet names them."""
    cause: UUID | None
    root: UUID
    verdict: VerdictKind
    refusal: Refusal | None
    run_phase: RunPhase
    round: int
    generation: int
    step: int
    """The session's step when the packet was routed."""
    retracted: bool = False
    stale: bool = False
    """It rests on a packet that was retracted."""
    ended: str = "ARCHIVED"
    """The overall state in which its machines ended; meaningless before."""
    chain: IdleChain | None = None
    """The chain without news that it extends; None when it begins one."""
    said: Said | None = None
    """For rules of a team; None in a session without any."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is left of one resource for the packets of a task, and its holder: a task, or '' for the session."""

    holder: str
    left: float


@dataclass(frozen=True, slots=True)
class TaskPlaces:
    """The places of an agent in a session of the coordinator `task`, and the DONE under review."""

    is_decider: bool
    is_reviewer: bool
    done: UUID | None


@dataclass(frozen=True, slots=True)
class QuestionPlaces:
    """What the rules for ASK and ANSWER read of a session: the question answered, and how much room there is.

    Without an open question of that id `asker` is empty.
    """

    asker: str = ""
    may_answer: tuple[str, ...] = ()
    role: str = ""
    """Of whom the question asks everybody; empty = it names people."""
    payload_hash: str = ""
    open_questions: int = 0
    ends_at: datetime | None = None
    """The session's deadline."""
    returns: str = ""
    """The schema that answers a request; empty = it is a question to people."""
    answer_schema: bytes | None = None
    """JSON of the schema that the fields of an answer fit; None = people answer without, or the question was erased."""


@dataclass(frozen=True, slots=True)
class WakePlaces:
    """What the rules for WAKE read of a session: its pending timers, and whether this key is one of them."""

    pending: int = 0
    is_pending: bool = False
    ends_at: datetime | None = None


class SessionView(Protocol):
    """Read-only view of a session; `apc_contracts.session.session.Session` is one."""

    @property
    def session_id(self) -> str:
        """The id of the session."""
        ...

    @property
    def state(self) -> str:
        """The state of the session's machine, such as RUNNING."""
        ...

    @property
    def run_phase(self) -> RunPhase:
        """The phase, which decides the packet types that are legal."""
        ...

    @property
    def phase_step(self) -> int:
        """The step at which the session entered its run_phase."""
        ...

    @property
    def round(self) -> int:
        """The round: a failed validation starts the next one."""
        ...

    @property
    def generation(self) -> int:
        """The generation, from 0."""
        ...

    @property
    def generation_limit(self) -> int:
        """After which generation the search ends."""
        ...

    @property
    def step(self) -> int:
        """How many steps the session has made."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether work is held until RESUME."""
        ...

    @property
    def is_terminal(self) -> bool:
        """Whether it is closed or halted."""
        ...

    @property
    def held_count(self) -> int:
        """Packets held because the session is paused."""
        ...

    @property
    def pending_acks(self) -> int:
        """ACKs that the session waits for, over all packets and recipients."""
        ...

    @property
    def items(self) -> int:
        """Admitted packets that are remembered, with their recipients and the names they refer to."""
        ...

    @property
    def open_bytes(self) -> int:
        """Bytes of agents' packets that are not finished."""
        ...

    def open_bytes_of(self, sender: str) -> int:
        """Return the bytes of one sender's unfinished packets."""
        ...

    @property
    def verified_scores(self) -> Mapping[str, float]:
        """swarm_id -> verified score in (0, 1]; empty before the first verified EVAL."""
        ...

    @property
    def swarms(self) -> Mapping[str, tuple[str, ...]]:
        """swarm_id -> its agents, from the SessionSpec."""
        ...

    @property
    def task_budgets(self) -> int:
        """Tasks in the tree budget."""
        ...

    def budget_parts(self, task_id: str, now: datetime) -> dict[str, Part]:
        """Return resource -> what is left for the packets of a task; only limited resources."""
        ...

    def parts_to_cut(self, task_id: str, giver_task: str, now: datetime) -> dict[str, Part]:
        """Return resource -> what a TASK_IR that belongs to `giver_task` can reserve for a task."""
        ...

    def task_giver(self, task_id: str) -> str | None:
        """Return who reserved a part for the task; None when it has none."""
        ...

    def task_places_of(self, agent_id: str) -> TaskPlaces | None:
        """Return an agent's places in a session of the coordinator `task`; None in other sessions."""
        ...

    def question_places(self, packet_id: UUID | None) -> QuestionPlaces | None:
        """Return what is known of the question with this id; None in a session in which nobody can ask."""
        ...

    def wake_places(self, agent_id: str, key: str) -> WakePlaces | None:
        """Return what is known of an agent's timer; None in a session without timers."""
        ...

    @property
    def dossier(self) -> Dossier | None:
        """What the rules of a team read; None without such rules, and in a snapshot of one packet."""
        ...

    def is_accepted(self, packet_id: UUID) -> bool:
        """Return whether a packet of this session was accepted: not refused, and not held any more."""
        ...

    def effect(self, name: str) -> str:
        """Return where the effect of this name stands, over all packets and agents of the session.

        The worst counts: unknown, claimed, made, settled, absent.
        """
        ...

    def identity(self, packet_id: UUID) -> Identity | None:
        """Return what is remembered of a packet; None when no packet took this id."""
        ...

    def is_member(self, agent_id: str) -> bool:
        """Return whether an agent takes part in the session."""
        ...

    def task_is_known(self, task_id: str) -> bool:
        """Return whether a packet of the session has named the task."""
        ...

    def root_is_known(self, packet_id: UUID) -> bool:
        """Return whether a packet of this id began a tree."""
        ...

    def symbolic_key_is_known(self, key: str) -> bool:
        """Return whether a packet has had this symbolic key."""
        ...

    def protocol_is_known(self, protocol_id: str) -> bool:
        """Return whether a packet has carried this protocol."""
        ...

    def protocol_holders(self, protocol_id: str) -> frozenset[str]:
        """Return the swarms that hold a protocol: its senders and those it was transferred to."""
        ...

    def last_generation_of(self, round_number: int) -> int:
        """Return the last generation that was open in that round."""
        ...

    def accepted_transfers(self, to_swarm: str) -> int:
        """Return the number of TRANSFERs accepted for that swarm in the current round and generation."""
        ...

    def smallest_top_k(self, to_swarm: str) -> int | None:
        """Return the smallest top_k of the valid TRANSFERs for that swarm in the current generation."""
        ...

    def loop_of(self, packet: Packet, payload_hash: bytes, cause: UUID | None, /) -> LoopState:
        """Return what the session remembers for the loop guard about an agent's packet: repeats and its chain."""
        ...
