"""A session made of plain values: to judge a recorded packet again, for what-if replays and for tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from apc_contracts.envelope.packet import Packet
from apc_contracts.judging.loop_state import NO_LOOP, LoopState
from apc_contracts.judging.session_view import Identity, Part, QuestionPlaces, TaskPlaces, WakePlaces
from apc_contracts.vocabulary import RunPhase


@dataclass(frozen=True, slots=True)
class SessionSnapshot:
    """A SessionView made of plain values.

    A set that is None contains everything: every member, task, root, key, protocol.
    """

    session_id: str
    state: str
    run_phase: RunPhase
    round: int = 1
    generation: int = 0
    step: int = 0
    phase_step: int = 0
    generation_limit: int = 0
    is_paused: bool = False
    is_terminal: bool = False
    held_count: int = 0
    pending_acks: int = 0
    task_budgets: int = 0
    items: int = 0
    open_bytes: int = 0
    own_open_bytes: int = 0
    parts: Mapping[str, Part] = field(default_factory=dict)
    cut_from: Mapping[str, Part] = field(default_factory=dict)
    givers: Mapping[str, str] = field(default_factory=dict)
    verified_scores: Mapping[str, float] = field(default_factory=dict)
    swarms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    identities: Mapping[UUID, Identity] = field(default_factory=dict)
    members: frozenset[str] | None = None
    tasks: frozenset[str] | None = None
    roots: frozenset[UUID] | None = None
    symbolic_keys: frozenset[str] | None = None
    protocols: Mapping[str, frozenset[str]] | None = None
    last_generations: Mapping[int, int] = field(default_factory=dict)
    accepted: Mapping[str, int] = field(default_factory=dict)
    top_k: Mapping[str, int] = field(default_factory=dict)
    loop: LoopState = NO_LOOP
    task_places: TaskPlaces | None = None
    question: QuestionPlaces | None = None
    wake: WakePlaces | None = None

    def wake_places(self, agent_id: str, key: str) -> WakePlaces | None:
        """Return what this snapshot's WAKE found."""
        return self.wake

    def question_places(self, packet_id: UUID | None) -> QuestionPlaces | None:
        """Return what this snapshot's packet asks or answers."""
        return self.question

    def task_places_of(self, agent_id: str) -> TaskPlaces | None:
        """Return the places of this snapshot's sender."""
        return self.task_places

    def identity(self, packet_id: UUID) -> Identity | None:
        """Return what is remembered of a packet."""
        return self.identities.get(packet_id)

    def open_bytes_of(self, sender: str) -> int:
        """Return the bytes of unfinished packets of this snapshot's sender."""
        return self.own_open_bytes

    def budget_parts(self, task_id: str, now: datetime) -> dict[str, Part]:
        """Return what is left for this snapshot's task."""
        return dict(self.parts)

    def parts_to_cut(self, task_id: str, giver_task: str, now: datetime) -> dict[str, Part]:
        """Return what this snapshot's TASK_IR can reserve."""
        return dict(self.cut_from)

    def task_giver(self, task_id: str) -> str | None:
        """Return who reserved a part for the task."""
        return self.givers.get(task_id)

    def is_member(self, agent_id: str) -> bool:
        """Return whether the agent belongs to the session."""
        return self.members is None or agent_id in self.members

    def task_is_known(self, task_id: str) -> bool:
        """Return whether the task is within scope."""
        return self.tasks is None or task_id in self.tasks

    def root_is_known(self, packet_id: UUID) -> bool:
        """Return whether an admitted packet has this root."""
        return self.roots is None or packet_id in self.roots

    def symbolic_key_is_known(self, key: str) -> bool:
        """Return whether the session has seen the key."""
        return self.symbolic_keys is None or key in self.symbolic_keys

    def protocol_is_known(self, protocol_id: str) -> bool:
        """Return whether the session has seen the protocol."""
        return self.protocols is None or protocol_id in self.protocols

    def protocol_holders(self, protocol_id: str) -> frozenset[str]:
        """Return the swarms that hold the protocol."""
        return (self.protocols or {}).get(protocol_id, frozenset())

    def last_generation_of(self, round_number: int) -> int:
        """Return the last generation of a round; 0 when none is recorded."""
        return self.generation if round_number == self.round else self.last_generations.get(round_number, 0)

    def accepted_transfers(self, to_swarm: str) -> int:
        """Return the number of TRANSFERs accepted for that swarm in the current round and generation."""
        return self.accepted.get(to_swarm, 0)

    def smallest_top_k(self, to_swarm: str) -> int | None:
        """Return the smallest top_k among them; None when none named one."""
        return self.top_k.get(to_swarm)

    def loop_of(self, _packet: Packet, _payload_hash: bytes, _cause: UUID | None) -> LoopState:
        """Return the loop state of the one packet that this snapshot is for."""
        return self.loop
