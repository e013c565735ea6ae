"""A session in memory: its state document, and the packets in flight."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

import orjson

from apc_contracts.contract.rules import Team
from apc_contracts.judging.dossier import Dossier
from apc_contracts.judging.session_view import (
    NO_LOOP,
    Identity,
    LoopState,
    Part,
    QuestionPlaces,
    TaskPlaces,
    WakePlaces,
    extend,
    longest,
)
from apc_contracts.judging.verdict import VerdictKind
from apc_contracts.packet import Packet, packet_named
from apc_contracts.session import budgets
from apc_contracts.session.document import LONGEST_KEY, SessionDocument, TaskDocument, Work, checksum
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, RunPhase
from apc_contracts.wire.parsing import ReceivedPacket
from apc_contracts.wire.receipts import EffectEntry

# The key by which a session recognises equal content.

Content: TypeAlias = tuple[bytes, str, int, str | tuple[str, ...]]
"""payload_hash, sender, generation and recipients of a packet."""


def content_of(sender: str, payload_hash: bytes, generation: int, addressed: Sequence[str]) -> Content:
    """Return the key for equal content; a single recipient, the usual case, is a plain string."""
    return payload_hash, sender, generation, addressed[0] if len(addressed) == 1 else tuple(addressed)


# What the rules for ASK, ANSWER and WAKE read of a session of the coordinator `task`.


def question_places_of(
    work: Work, deadlines: Mapping[str, datetime], packet_id: UUID | None, answer_schema: bytes | None = None
) -> QuestionPlaces:
    """Return what is known of the question with this id, and how much room there is."""
    ends_at, count = deadlines.get("deadline"), len(work.questions)
    asked = None if packet_id is None else work.questions.get(packet_id)
    if asked is None:
        return QuestionPlaces(open_questions=count, ends_at=ends_at)
    return QuestionPlaces(
        asked.asker,
        tuple(asked.may_answer),
        asked.role,
        asked.payload_hash,
        count,
        ends_at,
        asked.returns,
        answer_schema,
    )


def wake_places_of(work: Work, deadlines: Mapping[str, datetime], agent_id: str, key: str) -> WakePlaces:
    """Return how many timers are pending, and whether this one is."""
    is_pending = any((wake.agent, wake.key) == (agent_id, key) for wake in work.wakes.values())
    return WakePlaces(len(work.wakes), is_pending, deadlines.get("deadline"))


# The dependencies of a session: parents, evidence_refs, packet_ref_ids of ARBITRATIONs, artifact hashes.
#
# The log computes the same closure in one query (`apc_log.queries.lineage`); a test keeps both equal.


@dataclass(slots=True)
class Grounds:
    """The edges between one session's admitted packets, from a ground to what rests on it."""

    resting: dict[UUID, list[UUID]] = field(default_factory=dict)
    """packet -> those that name it as parent, evidence or candidate."""
    citing: dict[str, list[UUID]] = field(default_factory=dict)
    """Artifact hash -> packets that refer to it."""
    defining: dict[str, list[UUID]] = field(default_factory=dict)
    """Artifact hash -> ARTIFACTs with that hash."""
    defined: dict[UUID, str] = field(default_factory=dict)
    """ARTIFACT -> its hash."""
    replaced: dict[UUID, UUID] = field(default_factory=dict)
    """Retracted packet -> the replacement that its sender named; the replacement does not rest on the retracted one."""
    edges: int = 0
    """How many times a packet names another packet or an artifact."""

    def note(
        self, packet_id: UUID, packet_type: PacketType, parent: UUID | None, refers: Iterable[str], names: Sequence[str]
    ) -> None:
        """Add a packet: `refers` and `names` as `apc_contracts.packet` reads them."""
        if parent is not None:
            self.edges += 1
            self.resting.setdefault(parent, []).append(packet_id)
        for reference in refers:
            self.edges += 1
            named = packet_named(reference)
            if named is not None:
                self.resting.setdefault(named, []).append(packet_id)
            else:
                self.citing.setdefault(reference, []).append(packet_id)
        if packet_type is PacketType.ARTIFACT and names:
            self.defining.setdefault(names[0], []).append(packet_id)
            self.defined[packet_id] = names[0]

    def closure(self, target: UUID) -> list[UUID]:
        """Return everything that rests on a packet, transitively, nearest first; without it and its replacement."""
        seen = {target: None, self.replaced.get(target, target): None}
        waiting = [target]
        for packet_id in waiting:
            for resting in self._resting_on(packet_id):
                if resting not in seen:
                    seen[resting] = None
                    waiting.append(resting)
        return waiting[1:]

    def grounds_of(self, packet_id: UUID, parent: UUID | None, refers: Iterable[str]) -> Iterator[UUID]:
        """Yield the packets that a packet rests on directly: neither itself nor what it replaces.

        A hash stands for the ARTIFACTs with those bytes that were not replaced by another with the same bytes.
        """
        for ground in self._named(parent, refers):
            if ground != packet_id and self.replaced.get(ground) != packet_id:
                yield ground

    def _named(self, parent: UUID | None, refers: Iterable[str]) -> Iterator[UUID]:
        if parent is not None:
            yield parent
        for reference in refers:
            named = packet_named(reference)
            if named is not None:
                yield named
                continue
            for artifact in self.defining.get(reference, ()):
                replacement = self.replaced.get(artifact)
                if replacement is None or self.defined.get(replacement) != reference:
                    yield artifact

    def _resting_on(self, packet_id: UUID) -> Iterator[UUID]:
        yield from self.resting.get(packet_id, ())
        digest = self.defined.get(packet_id)
        if digest is not None:
            yield from self.citing.get(digest, ())


@dataclass(slots=True)
class Progress:
    """The machine of one packet for one recipient."""

    state: str
    attempt: int
    is_open: bool
    """The delivery has not finished: no outcome, reject, expiry, dead letter or retraction yet."""
    given_up: set[int] = field(default_factory=set)
    """Attempts that the orchestrator gave up before their end: what their handlers spent still counts, once."""
    not_before: datetime | None = None
    """For a deferred attempt without a receipt yet: not before this time."""
    confirmed: int = field(default=0, compare=False)
    """The attempt whose delivery the broker has confirmed in this epoch; 0 = none."""
    repeated_at: datetime | None = field(default=None, compare=False)
    """When a repeat of the packet was last delivered."""


@dataclass(slots=True)
class OpenPacket:
    """An accepted packet with at least one machine that has not finished."""

    received: ReceivedPacket
    round: int
    recipients: dict[str, Progress]
    verification: str = ""
    """'' before the first APPLIED, then pending, passed or failed; the same for all recipients."""
    completion: str | None = "non_promotable_complete"
    """The event that ends a VERIFIED machine; None while it waits there until validation."""

    standing: tuple[int, int] = (0, 0)
    """For an ARBITRATION or DECISION: ranks of authority and commitment."""
    is_evidence_counted: bool = False
    """Its VERIFIED evidence has been counted in the session."""

    @property
    def packet(self) -> Packet:
        return self.received.packet


@dataclass(slots=True)
class HeldPacket:
    """A packet logged as `held`: a TRANSFER until its barrier, any packet until RESUME."""

    received: ReceivedPacket
    recipients: tuple[str, ...]
    round: int
    is_paused: bool
    """Held because the session is paused."""


WaitingPacket = TypeVar("WaitingPacket", bound=OpenPacket | HeldPacket)


class Waiting(dict[UUID, WaitingPacket]):
    """Unfinished packets by id. Counts the bytes of agents' bodies, by sender, in `sizes`."""

    def __init__(self, sizes: dict[str, int]) -> None:
        super().__init__()
        self._sizes = sizes

    def __setitem__(self, packet_id: UUID, packet: WaitingPacket) -> None:
        self._count(self.get(packet_id), -1)
        self._count(packet, 1)
        super().__setitem__(packet_id, packet)

    def __delitem__(self, packet_id: UUID) -> None:
        self._count(self[packet_id], -1)
        super().__delitem__(packet_id)

    def pop(self, packet_id: UUID, *default: Any) -> Any:
        """Remove and return a packet, like dict.pop."""
        self._count(self.get(packet_id), -1)
        return super().pop(packet_id, *default)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Waiting[WaitingPacket]":
        copied: Waiting[WaitingPacket] = Waiting(deepcopy(self._sizes, memo))
        memo[id(self)] = copied
        copied.update((packet_id, deepcopy(packet, memo)) for packet_id, packet in self.items())  # counted already
        return copied

    def _count(self, packet: OpenPacket | HeldPacket | None, times: int) -> None:
        if packet is None:
            return
        sender = packet.received.packet.sender.agent_id
        if sender == ORCHESTRATOR:
            return
        size = self._sizes.get(sender, 0) + times * len(packet.received.body)
        if size:
            self._sizes[sender] = size
        else:
            del self._sizes[sender]


# What agents have reported of the effects that their handlers make outside the bus (docs/how-to/effects.md).

EFFECT_ENTRIES = 2_000
"""Entries of one agent that a session remembers; further ones are not logged."""
_BITS = {entry: 1 << place for place, entry in enumerate(EffectEntry)}
_BY_RANK = (
    (EffectEntry.SETTLED, "settled"),
    (EffectEntry.MADE, "made"),
    (EffectEntry.RELEASED, "absent"),
    (EffectEntry.UNKNOWN, "unknown"),
    (EffectEntry.CLAIMED, "claimed"),
)
"""The entries of one claim: the first that was reported says where it stands, whatever came after it."""
EFFECT_STATES = ("absent", "settled", "made", "claimed", "unknown")
"""Where an effect may stand, the worst last."""


@dataclass(slots=True)
class ReportedEffects:
    """The entries about effects of one session, each once."""

    claims: dict[str, dict[tuple[UUID, str], dict[UUID, int]]] = field(default_factory=dict)
    """Key -> (packet, agent) -> claim -> the bits of its entries; claims in the order in which they came."""
    counts: dict[str, int] = field(default_factory=dict)
    """Agent -> its entries."""
    numbers: dict[tuple[UUID, str], int] = field(default_factory=dict)
    """(packet, agent) -> the entries of this delivery."""

    def knows(self, packet_id: UUID, agent: str, key: str, claim: UUID, entry: EffectEntry) -> bool:
        """Return whether this entry was noted."""
        return bool(self.claims.get(key, {}).get((packet_id, agent), {}).get(claim, 0) & _BITS[entry])

    def has_room_for(self, agent: str) -> bool:
        """Return whether another entry of this agent may be noted."""
        return self.counts.get(agent, 0) < EFFECT_ENTRIES

    def note(self, packet_id: UUID, agent: str, key: str, claim: UUID, entry: EffectEntry) -> int:
        """Note an entry that is not known; return its number among those of its delivery, from 1."""
        claims = self.claims.setdefault(key, {}).setdefault((packet_id, agent), {})
        claims[claim] = claims.get(claim, 0) | _BITS[entry]
        self.counts[agent] = self.counts.get(agent, 0) + 1
        number = self.numbers[packet_id, agent] = self.numbers.get((packet_id, agent), 0) + 1
        return number

    def state_of(self, key: str) -> str:
        """Return where the effect of this name stands: the worst of EFFECT_STATES over all packets and agents.

        An effect is claimed again only after its earlier claim was released. So of an earlier claim counts only that
        it was made, or settled.
        """
        found = {"absent"}
        for claims in self.claims.get(key, {}).values():
            *earlier, latest = map(_claim_state, claims.values())
            found.add(latest)
            found.update({"made", "settled"}.intersection(earlier))
        return max(found, key=EFFECT_STATES.index)


def _claim_state(bits: int) -> str:
    return next(state for entry, state in _BY_RANK if bits & _BITS[entry])


@dataclass(slots=True)
class Session:
    """A SessionView that only `advance` changes, in place.

    A copy per packet would cost more than judging it, and a batch that is not confirmed drops the whole memory anyway.
    """

    document: SessionDocument
    score_epsilon: float
    """From the contract: keeps a verified score above 0 and finite for a perfect outcome."""
    identities: dict[UUID, Identity] = field(default_factory=dict)
    refused_items: int = field(default=0, compare=False)
    """Refused packets among the identities, with their recipients."""
    waiting_bytes: dict[str, int] = field(default_factory=dict)
    """Sender -> the bytes of its packets in `open` and `held`, and of the schemas of its questions."""
    answer_schemas: dict[UUID, bytes] = field(default_factory=dict)
    """Open question to people -> JSON of the schema of its answer; one without has none."""
    open: Waiting[OpenPacket] = field(init=False)
    held: Waiting[HeldPacket] = field(init=False)
    outstanding: dict[str, int] = field(default_factory=dict)
    """recipient -> open deliveries of this session; `_substrate` is one here, but nobody waits for it."""
    roots: set[UUID] = field(default_factory=set)
    members: frozenset[str] = frozenset()
    swarm_of: dict[str, str] = field(default_factory=dict)
    contents: dict[Content, int] = field(default_factory=dict)
    """What was sent since the generation opened, and how often; the longest unrepeated first."""
    evidence: set[int] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    tasks: set[str] = field(default_factory=set)
    resting: dict[tuple[str, str], list[UUID]] = field(default_factory=dict)
    """Subject -> ARBITRATIONs or DECISIONs about it that had not finished when last checked."""
    grounds: Grounds = field(default_factory=Grounds)
    claims: set[str] = field(default_factory=set)
    """Ids of the claims that admitted CLAIMs and TASK_IRs have made."""
    effects: ReportedEffects = field(default_factory=ReportedEffects)
    admitted_items: int = 0
    """Admitted packets among the identities, with their recipients."""
    work: Work | None = field(init=False, compare=False)
    """Where a session of the coordinator `task` stands; None in the others."""
    dossier: Dossier | None = None
    """What the rules of the contract's team read; None without such rules."""
    document_bytes: int = field(default=4096, compare=False)
    """How large the document was when it was last logged."""

    def __post_init__(self) -> None:
        document = self.document
        self.work = document.work if isinstance(document, TaskDocument) else None
        self.open, self.held = Waiting(self.waiting_bytes), Waiting(self.waiting_bytes)
        self.swarm_of = {agent: swarm for swarm, agents in document.swarms.items() for agent in agents}
        self.members = frozenset({*self.swarm_of, *document.members, document.opener, ORCHESTRATOR})
        self.keys = set(document.symbolic_keys)
        self.evidence = set(document.evidence)
        self.tasks = set(document.task_ids)

    def open_dossier(self, team: Team | None) -> None:
        """Begin to remember what a team's rules read."""
        if team is None:
            return
        document = self.document
        if team.counters and document.counters is None:
            document.counters = {}
        counters = {} if document.counters is None else document.counters
        self.dossier = Dossier(team, document.opened_at, self.members, document.spent, counters)

    def is_accepted(self, packet_id: UUID) -> bool:
        identity = self.identities.get(packet_id)
        if identity is None or identity.refusal is not None or (self.held and packet_id in self.held):
            return False
        return identity.verdict in (VerdictKind.ACCEPTED, VerdictKind.HELD)

    def task_places_of(self, agent_id: str) -> TaskPlaces | None:
        work = self.work
        return None if work is None else TaskPlaces(agent_id in work.deciders, agent_id in work.reviewers, work.done)

    def effect(self, name: str) -> str:
        return self.effects.state_of(name)

    def question_places(self, packet_id: UUID | None) -> QuestionPlaces | None:
        if self.work is None:
            return None
        asked = None if packet_id is None else self.answer_schemas.get(packet_id)
        return question_places_of(self.work, self.document.deadlines, packet_id, asked)

    def wake_places(self, agent_id: str, key: str) -> WakePlaces | None:
        return None if self.work is None else wake_places_of(self.work, self.document.deadlines, agent_id, key)

    @property
    def session_id(self) -> str:
        return self.document.session_id

    @property
    def state(self) -> str:
        return self.document.state

    @property
    def run_phase(self) -> RunPhase:
        return self.document.run_phase

    @property
    def phase_step(self) -> int:
        return self.document.phase_step

    @property
    def round(self) -> int:
        return self.document.round

    @property
    def generation(self) -> int:
        return self.document.generation

    @property
    def generation_limit(self) -> int:
        return self.document.generation_limit

    @property
    def step(self) -> int:
        return self.document.step

    @property
    def is_paused(self) -> bool:
        return self.document.paused_at is not None

    @property
    def is_terminal(self) -> bool:
        return self.document.state in ("CLOSED", "HALTED")

    @property
    def held_count(self) -> int:
        return sum(held.is_paused for held in self.held.values())

    @property
    def pending_acks(self) -> int:
        return sum(len(pending.missing) for pending in self.document.pending_acks.values())

    @property
    def verified_scores(self) -> Mapping[str, float]:
        """(1 - best of the session + e) / (1 - own best + e) for every swarm with a verified outcome."""
        outcomes = self.document.best_outcomes
        if not outcomes:
            return {}
        best = max(outcomes.values())
        return {swarm: self.verified_score(best, own) for swarm, own in outcomes.items()}

    @property
    def swarms(self) -> Mapping[str, tuple[str, ...]]:
        return {swarm: tuple(agents) for swarm, agents in self.document.swarms.items()}

    @property
    def task_budgets(self) -> int:
        return len(self.document.task_budgets)

    def budget_parts(self, task_id: str, now: datetime) -> dict[str, Part]:
        return budgets.parts(self.document, task_id, now)

    def parts_to_cut(self, task_id: str, giver_task: str, now: datetime) -> dict[str, Part]:
        return budgets.parts_to_cut(self.document, task_id, giver_task, now)

    def task_giver(self, task_id: str) -> str | None:
        part = self.document.task_budgets.get(task_id)
        return part.giver if part is not None and part.is_reserved else None

    @property
    def open_deliveries(self) -> int:
        return sum(self.outstanding.values())

    @property
    def next_deadline(self) -> datetime | None:
        """When the next timer is due; None while the session is paused or at its end."""
        if self.is_paused or not self.document.deadlines:
            return None
        return min(self.document.deadlines.values())

    @property
    def items(self) -> int:
        return self.admitted_items + self.grounds.edges + len(self.claims)

    @property
    def open_bytes(self) -> int:
        return sum(self.waiting_bytes.values())

    def open_bytes_of(self, sender: str) -> int:
        return self.waiting_bytes.get(sender, 0)

    def keep_answer_schema(self, packet_id: UUID, asker: str, schema: Mapping[str, Any]) -> None:
        """Remember what an answer has to fit, until the question ends."""
        body = self.answer_schemas[packet_id] = orjson.dumps(schema)
        self.waiting_bytes[asker] = self.waiting_bytes.get(asker, 0) + len(body)

    def drop_answer_schema(self, packet_id: UUID, asker: str) -> None:
        """Forget what an answer had to fit, if it had to."""
        size = self.waiting_bytes.get(asker, 0) - len(self.answer_schemas.pop(packet_id, b""))
        if size:
            self.waiting_bytes[asker] = size
        else:
            self.waiting_bytes.pop(asker, None)

    def remember(self, packet_id: UUID, identity: Identity) -> None:
        """Record a packet's id; it is never forgotten while the session is in memory."""
        self.identities[packet_id] = identity
        if identity.verdict is VerdictKind.REFUSED:
            self.refused_items += 1 + len(identity.recipients)
        else:
            self.admitted_items += 1 + len(identity.recipients)

    def identity(self, packet_id: UUID) -> Identity | None:
        return self.identities.get(packet_id)

    def is_member(self, agent_id: str) -> bool:
        return agent_id in self.members

    def task_is_known(self, task_id: str) -> bool:
        return task_id in self.tasks

    def root_is_known(self, packet_id: UUID) -> bool:
        return packet_id in self.roots

    def symbolic_key_is_known(self, key: str) -> bool:
        return key[:LONGEST_KEY] in self.keys

    def protocol_is_known(self, protocol_id: str) -> bool:
        return protocol_id in self.document.protocols

    def protocol_holders(self, protocol_id: str) -> frozenset[str]:
        return frozenset(self.document.protocols.get(protocol_id, ()))

    def last_generation_of(self, round_number: int) -> int:
        if round_number == self.document.round:
            return self.document.generation
        return self.document.last_generations.get(str(round_number), 0)

    def accepted_transfers(self, to_swarm: str) -> int:
        return self.document.round_state.accepted_transfers.get(to_swarm, 0)

    def smallest_top_k(self, to_swarm: str) -> int | None:
        return self.document.round_state.smallest_top_k.get(to_swarm)

    def loop_of(self, packet: Packet, payload_hash: bytes, cause: UUID | None, /) -> LoopState:
        sender, trace = packet.sender.agent_id, packet.trace
        content = content_of(sender, payload_hash, trace.generation, [one.agent_id for one in packet.recipients])
        repeats, parent = self.contents.get(content, 0), trace.parent_packet_id
        chain = None
        if parent is not None or cause is not None:
            known = self._answered(parent, cause)
            is_news = self.work is not None and repeats == 0  # in a task, a payload that was not sent before is news
            if known and not is_news and not self._brings_something_new(packet):
                chain = longest(extend(identity.chain, identity.sender, sender) for identity in known)
        return NO_LOOP if repeats == 0 and chain is None else LoopState(repeats, chain)

    def _answered(self, parent: UUID | None, cause: UUID | None) -> list[Identity]:
        """Return the packets that this one answers; the orchestrator and the session's opener do not count."""
        named = (parent,) if cause is None or cause == parent else (parent, cause)
        found = [self.identities.get(one) for one in named if one is not None]
        opener = self.identities.get(self.document.start_packet_id)
        return [one for one in found if one is not None and one is not opener and one.sender != ORCHESTRATOR]

    def _brings_something_new(self, packet: Packet) -> bool:
        for key in packet.symbolic_keys:
            if key[:LONGEST_KEY] not in self.keys:
                return True
        bundle = packet.proof_bundle
        return bundle is not None and any(checksum(one) not in self.evidence for one in bundle.evidence_refs)

    @property
    def live_swarms(self) -> list[str]:
        dead = self.document.dead_swarms
        return [swarm for swarm in self.document.swarms if swarm not in dead]

    def verified_score(self, best_outcome: float, own_outcome: float) -> float:
        """Return a swarm's verified score in (0, 1]: the best loss over its own.

        Source: docs/specification/contract.md section 5.
        """
        epsilon = self.score_epsilon
        return (1.0 - best_outcome + epsilon) / (1.0 - own_outcome + epsilon)
