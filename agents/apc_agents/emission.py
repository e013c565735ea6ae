"""What a handler emits: its draft, the machine that follows it, and the packet that is built of it."""

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict, Unpack
from uuid import UUID

from pydantic import BaseModel, JsonValue, ValidationError

from apc_agents.errors import AgentError, EmitRefused
from apc_agents.running.delivery import KnownSessions, is_refusal
from apc_agents.typed import payload_of
from apc_bus.port import Publication
from apc_contracts.agent import SecurityLevel
from apc_contracts.identity.ids import new_packet_id, reply_id
from apc_contracts.packet import (
    PACKET_PREFIX,
    PACKET_TYPES,
    TYPE_OF_PAYLOAD,
    Actor,
    Lineage,
    Packet,
    ProofBundle,
    Recipient,
    Routing,
    Trace,
    reference_of,
)
from apc_contracts.payloads.by_type import (
    DecisionPayload,
    MessagePayload,
    OpenEvalPayload,
    Payload,
    SignalFields,
    SignalPayload,
)
from apc_contracts.payloads.session_signals import ROLE_PREFIX, first_new_field
from apc_contracts.vocabulary import (
    ALL_RECIPIENTS,
    CONTROL_TYPES,
    PROTOCOL_1_1,
    PROTOCOL_VERSION,
    SIGNALS_OF_1_1,
    SUBSTRATE_RECIPIENT,
    Channel,
    DeliveryMode,
    RunPhase,
    Signal,
)
from apc_contracts.wire.parsing import payload_hash, refusal_of

if TYPE_CHECKING:
    from apc_contracts.contract.machines import Machine

ALL: Final = ALL_RECIPIENTS
"""Every member of the session that handles the type (BROADCAST)."""
SUBSTRATE: Final = SUBSTRATE_RECIPIENT
"""The stream that any agent may read (SUBSTRATE)."""
DEFAULT_TTL = timedelta(minutes=10)
DEFAULT_PRIORITY = 4
"""The highest that takes the normal queue."""


class Role(str):
    """Everybody with the role `name`, as the destination of a question: `ctx.ask(..., to=Role("release-manager"))`.

    ```python
    assert Role("lead") == "role:lead"  # an id that no agent can have
    ```
    """

    __slots__ = ()

    def __new__(cls, name: str) -> "Role":
        """Return the recipient's id for a role."""
        return super().__new__(cls, f"{ROLE_PREFIX}{name}")


Destination = str | Recipient | Sequence[str | Recipient]


class Ancestry(Enum):
    """Says that a packet has no parent although a packet caused it."""

    ROOT = "root"


ROOT: Final = Ancestry.ROOT


@dataclass(frozen=True, slots=True)
class KnownParent:
    """A parent of which no more is left than its id and its root."""

    packet_id: UUID
    root_packet_id: UUID


Parent = UUID | Packet | KnownParent | Ancestry


class PacketOptions(TypedDict, total=False):
    """What may be said of any packet besides its payload: the options of EmitOptions but `to` and `run_phase`."""

    parent: Parent | None
    confidence: float
    symbolic_keys: Sequence[str]
    capability_tags: Sequence[str] | None
    lineage: Lineage | None
    proof_bundle: ProofBundle | None
    priority: int
    ttl: timedelta
    requires_ack: bool
    ack_timeout: timedelta | None
    retry_limit: int | None
    generation: int | None
    session_id: str | None
    run_id: str | None
    task_id: str | None
    packet_id: UUID | None
    channel: Channel
    metadata: Mapping[str, JsonValue] | None


class EmitOptions(PacketOptions, total=False):
    """The options of `HandlerContext.emit`. What is left out, or None, is inherited or has a default.

    ```python
    from apc_contracts import Channel, ProofBundle


    @desk.on(Question)
    async def reply(question: Question, ctx: HandlerContext) -> None:
        urgent: EmitOptions = {"priority": 7, "ttl": timedelta(seconds=30), "retry_limit": 2}
        await ctx.emit(Answer(text="at once"), to=["reader", "scribe"], **urgent)
        await ctx.emit(Answer(text="for any agent that reads the stream"), to=SUBSTRATE)
        trace = ctx.packet.trace
        await ctx.emit(
            Answer(text="with everything said"),
            to=ALL,
            parent=ROOT,
            session_id=trace.session_id,
            run_id=trace.run_id,
            task_id=trace.task_id,
            generation=trace.generation,
            run_phase=ctx.run_phase,
            packet_id=None,
            lineage=None,
            confidence=0.8,
            symbolic_keys=["support"],
            capability_tags=["english"],
            proof_bundle=ProofBundle(evidence_refs=(f"packet:{ctx.packet.packet_id}",)),
            requires_ack=False,
            ack_timeout=timedelta(seconds=5),
            channel=Channel.INTER_AGENT,
            metadata={"ticket": 17},
        )


    async with AgentTestClient(desk) as client:
        first = await client.send(Question(text="why"))
        await client.settled()
    assert (first.routing.priority, first.routing.ttl_ms) == (7, 30_000)
    assert client.emitted[-1].metadata["ticket"] == 17
    ```

    Attributes:
        to: an agent_id, a Recipient, several of them, ALL or SUBSTRATE; default the sender of the handled packet.
        parent: the packet (or its id) that this one follows from; default the handled packet; ROOT = none.
        confidence: 0..1; default 1.
        symbolic_keys: words by which others find it; default none.
        capability_tags: what a recipient should be able to do; default none. Nobody is left out because of them.
        lineage: the protocol that it carries, of a contract of research; default none.
        proof_bundle: evidence, falsifiers, scores and endorsements; default those of `ctx.cite`.
        priority: 0..9; from 5 on the recipient takes it from its urgent queue. Default 4.
        ttl: how long it may wait for its handler, 1 ms to 24 h; default 10 minutes.
        requires_ack: wait for the ACK of every recipient, of a BROADCAST for the first; default False.
        ack_timeout: how long before the orchestrator routes it again, or gives up; default `APC_ACK_TIMEOUT`.
        retry_limit: 0..10, how often the orchestrator routes it again: when an ACK is missing, or a handler asks for a
            retry. Default the contract's.
        generation: default the newest that is known of the session.
        session_id: default that of the handled packet. In another session the packet is a root, and a handler that
            runs again after a crash makes a new one, unless packet_id is given.
        run_id: default that of the handled packet.
        task_id: default that of the handled packet.
        packet_id: default derived from the handled packet and the count of emits: give one only for a packet that
            nothing caused and that a restart has to repeat.
        channel: default INTER_AGENT.
        metadata: JSON of your own beside the payload; what others make of it is theirs. Default none.
        run_phase: default the newest that is known of the session.
    """

    to: Destination | None
    run_phase: RunPhase | None


class Emitting(Protocol):
    """The agent that emits."""

    @property
    def agent_id(self) -> str: ...

    @property
    def security_level(self) -> SecurityLevel: ...


class Emits(Protocol):
    """Who emits packets in answer to one: a HandlerContext."""

    @property
    def packet(self) -> Packet: ...

    @property
    def agent(self) -> Emitting: ...

    def emit(self, payload: BaseModel, **options: Unpack[EmitOptions]) -> Awaitable[Packet[Any]]:
        """Emit a packet. Raises EmitError."""
        ...


class Draft:
    """A payload, and what is said of its packet; a model with `@message` becomes a MESSAGE.

    Raises:
        TypeError: an option that does not exist.
        AgentError: neither a payload nor a decorated model.
    """

    __slots__ = ("options", "payload")

    def __init__(self, payload: Payload | BaseModel, **options: Unpack[EmitOptions]) -> None:
        unknown = options.keys() - EmitOptions.__annotations__.keys()
        if unknown:
            known = ", ".join(sorted(EmitOptions.__annotations__))
            raise TypeError(f"a packet has no option {min(unknown)!r}: use {known}")
        self.payload = payload_of(payload)
        self.options = options

    def with_ack_timeout(self, timeout: timedelta) -> "Draft":
        """Return a draft that waits this long for its ACKs."""
        options = self.options.copy()
        options["ack_timeout"] = timeout
        return Draft(self.payload, **options)

    def citing(self, references: Sequence[str]) -> "Draft":
        """Return a draft whose evidence names these too, each once and after its own."""
        bundle = self.options.get("proof_bundle") or ProofBundle()
        own = {reference_of(text) for text in bundle.evidence_refs}
        added = [one for one in references if one not in own]
        if not added:
            return self
        options = self.options.copy()
        options["proof_bundle"] = bundle.model_copy(update={"evidence_refs": (*bundle.evidence_refs, *added)})
        return Draft(self.payload, **options)

    def with_cited(self, cause: Packet | None) -> "Draft":
        """Return a draft with what this task has cited as evidence, if it says something and stays in the session."""
        session_id = self.options.get("session_id")
        is_elsewhere = cause is not None and session_id not in (None, cause.trace.session_id)
        return self if is_elsewhere or not self.rests_on_evidence else self.citing(_cited.get())

    @property
    def rests_on_evidence(self) -> bool:
        """Whether it says something that evidence can bear out; most control packets do not."""
        if isinstance(self.payload, SignalPayload):
            return self.payload.signal in (Signal.ASK, Signal.ANSWER)
        return TYPE_OF_PAYLOAD.get(type(self.payload)) not in CONTROL_TYPES

    def said(self) -> str:
        """Return the text by which the emission is recognised in another run of the handler."""
        to = self.options.get("to")
        listed = () if to is None else (to,) if isinstance(to, str | Recipient) else to
        names = ",".join(one.agent_id if isinstance(one, Recipient) else str(one) for one in listed)
        return f"{type(self.payload).__name__} {payload_hash(self.payload)[:16]} to {names or 'its sender'}"


# A task begins with the evidence of the task that started it; so the same packet has the same evidence in each run.

_cited: Final[ContextVar[tuple[str, ...]]] = ContextVar("apc_cited", default=())
"""What this task names as evidence in the packets that it emits."""


def begin_citing() -> None:
    """Begin a run of a handler, which has cited nothing."""
    _cited.set(())


def cite(references: Sequence[str]) -> None:
    """Name these as evidence in what is emitted from now on, by this task and those that it starts."""
    _cited.set(tuple(dict.fromkeys((*_cited.get(), *references))))


def citation_of(packet: Packet | UUID | str) -> str:
    """Return the reference to a packet, or to its id, as evidence names it. Raises AgentError for what is none."""
    name = packet.packet_id if isinstance(packet, Packet) else packet
    reference = reference_of(str(name))
    if reference is None or not reference.startswith(PACKET_PREFIX):
        raise AgentError(
            f"ctx.cite({name!r}) names no packet: give a packet or its packet_id; other evidence goes into proof_bundle"
        )
    return reference


# Where one handler invocation stands: an instance of the machine `intra_agent_coordination`
# (docs/specification/contract.md section 11).
#
# The SDK raises the events; nothing here decides. One emission at a time moves the machine: what is emitted beside it,
# or answered by the SDK itself (ACK, NACK, ERROR), leaves it where it is. An emission that the gate has taken brings it
# back to LOCAL_IDLE, and the next one is another lap.

_THINKING = "IDEA_SYNTHESIS"


@dataclass(frozen=True, slots=True)
class LocalTransition:
    """One step of an invocation; `reason` is what a handler said when its own critique or check failed."""

    event: str
    from_state: str
    to_state: str
    reason: str = ""


class LocalCoordination:
    """The machine of one invocation; it has no transition before the handler emits or judges something."""

    def __init__(self, machine: "Machine") -> None:
        self._machine = machine
        self._is_emitting = False
        self._state = machine.initial
        self.transitions: list[LocalTransition] = []
        """Every step so far; empty for a handler that emits nothing, which has no instance."""

    @property
    def state(self) -> str:
        """The state of the machine now."""
        return self._state

    @contextmanager
    def emission(self) -> Iterator["Emission"]:
        """Follow one emission from the idea on; one that starts beside another is not followed."""
        emission = Emission(None if self._is_emitting else self)
        if not emission.is_followed:
            yield emission
            return
        self._is_emitting = True
        try:
            self._take_idea()
            yield emission
        finally:
            self._is_emitting = False
            if self._state not in (self._machine.initial, _THINKING):
                self.halt()  # neither taken nor refused: nobody knows what became of it

    def critique_fail(self, reason: str) -> None:
        """Record the handler's own critique of an idea not emitted yet. Raises AgentError while it emits one."""
        self._check_idle("critique_fail")
        self._take_idea()
        self.take("critique_fail", reason)

    def local_checks_fail(self, reason: str) -> None:
        """Record the handler's own check of what it has built. Raises AgentError while it emits."""
        self._check_idle("local_checks_fail")
        self._take_idea()
        self.take("critique_pass")
        self.take("artifact_local_ready")
        self.take("local_checks_fail", reason)

    def halt(self) -> None:
        """End the instance, if there is one, by a cancel or an error."""
        if self.transitions and self._state not in self._machine.terminal:
            self.take("cancel_or_error")

    def take(self, event: str, reason: str = "") -> None:
        """Raise an event. Raises TransitionRefused: it is illegal here."""
        before, self._state = self._state, self._machine.step(self._state, event)
        self.transitions.append(LocalTransition(event, before, self._state, reason))

    def _take_idea(self) -> None:
        if self._state in self._machine.terminal:  # the handler goes on after an error: another instance
            self._state = self._machine.initial
        if self._state == self._machine.initial:
            self.take("task_assigned")
            self.take("context_complete")
        self.take("idea_packet_ready")

    def _check_idle(self, event: str) -> None:
        if self._is_emitting:
            raise AgentError(f"{event} while a packet is being emitted: await the emit first")


@dataclass(frozen=True, slots=True)
class Emission:
    """The stations of one emission."""

    _coordination: LocalCoordination | None

    @property
    def is_followed(self) -> bool:
        """Whether this emission moves the machine."""
        return self._coordination is not None

    def criticised(self, passed: bool) -> None:
        """Record that the local admit() has judged the packet."""
        self._take("critique_pass" if passed else "critique_fail")

    def built(self) -> None:
        """Record that bytes and hash are final, within the limits of the contract."""
        self._take("artifact_local_ready")
        self._take("local_checks_pass")

    def published(self) -> None:
        """Record that the broker has confirmed the packet, or that it leaves when the state is saved."""
        self._take("packet_emitted")

    def answered(self, accepted: bool) -> None:
        """Record that the orchestrator has the packet: by the broker's confirm, or by the ACK where one is required."""
        self._take("ack_accepted" if accepted else "ack_rejected_or_deferred")

    def _take(self, event: str) -> None:
        if self._coordination is not None:
            self._coordination.take(event)


NOT_FOLLOWED = Emission(None)
"""The SDK's own answers."""
UNFOLLOWED = nullcontext(NOT_FOLLOWED)
"""In the place of `LocalCoordination.emission`, for those."""


# Builds the packets that an agent emits: what a reply inherits from its cause, and what it may say itself.


@dataclass(frozen=True, slots=True)
class Built:
    """A packet, and the cause and ordinal that its id was derived from."""

    packet: Packet
    cause: UUID | None = None
    ordinal: int | None = None


def built_by(packet: Packet, cause: Packet | None, ordinal: int) -> Built:
    """Return an emitted packet with what its id follows from, if it follows from anything."""
    is_derived = cause is not None and reply_id(cause.packet_id, packet.sender.agent_id, ordinal) == packet.packet_id
    return Built(packet, cause.packet_id, ordinal) if cause is not None and is_derived else Built(packet)


@dataclass(frozen=True, slots=True)
class HeldPacket:
    """A packet that leaves when ctx.state is saved."""

    built: Built
    publication: Publication
    is_remembered: bool
    """Whether it belongs to the session's conversation in ctx.memory."""


class Builder:
    """Builds packets of one agent."""

    def __init__(self, actor: Actor, sessions: KnownSessions) -> None:
        self._actor = actor
        self._sessions = sessions

    @property
    def agent_id(self) -> str:
        """The agent whose packets are built."""
        return self._actor.agent_id

    def names_contract(self, packet: Packet) -> bool:
        """Return whether the packet's session has its own contract, as far as this worker has heard."""
        return bool(self._sessions.of(packet.trace.session_id).moment.contract)

    def build(self, draft: Draft, cause: Packet | None, ordinal: int) -> Built:
        """Return the packet of a draft.

        Its id follows from the cause and the ordinal, so that a handler that runs again makes it again. Two kinds
        have a fresh id and are roots unless a parent is named, because the session knows no cause of theirs:
        packets into another session, and what follows from the gate's NACK of a refused packet.

        Raises:
            EmitRefused: SCHEMA_INVALID, or no recipient or session to inherit.
        """
        if cause is not None and draft.options.get("session_id") not in (None, cause.trace.session_id):
            cause = None
        known_cause = None if cause is None or is_refusal(cause) else cause.packet_id
        parent = draft.options.get("parent") or (ROOT if cause is None or known_cause is None else cause)
        given_id = draft.options.get("packet_id")
        if given_id is not None or known_cause is None:
            built = Built(self._packet(draft, cause, parent, given_id or new_packet_id()))
        else:
            packet_id = reply_id(known_cause, self._actor.agent_id, ordinal)
            built = Built(self._packet(draft, cause, parent, packet_id), known_cause, ordinal)
        self._sessions.note_root(built.packet)
        self._sessions.note_start(built.packet)
        return built

    def _packet(self, draft: Draft, cause: Packet | None, parent: Parent, packet_id: UUID) -> Packet:
        try:
            return self._validated(draft, cause, parent, packet_id)
        except ValidationError as error:
            refused = refusal_of(error)
            raise EmitRefused(refused.code, refused.path, refused.message) from error

    def _validated(self, draft: Draft, cause: Packet | None, parent: Parent, packet_id: UUID) -> Packet:
        packet_type = TYPE_OF_PAYLOAD.get(type(draft.payload))
        if packet_type is None:
            raise EmitRefused("SCHEMA_INVALID", "payload", f"{type(draft.payload).__name__} is no payload class")
        options = draft.options
        trace = self._trace(options, cause, parent, packet_id)
        recipients = _recipients(options.get("to"), cause)
        tags = options.get("capability_tags")
        run_phase = options.get("run_phase") or self._sessions.of(trace.session_id).moment.run_phase
        return PACKET_TYPES[packet_type](
            protocol_version=_version(draft.payload),
            packet_id=packet_id,
            packet_type=packet_type,
            channel=options.get("channel", Channel.INTER_AGENT),
            run_phase=run_phase,
            created_at=datetime.now(UTC),
            sender=self._actor,
            recipients=recipients,
            trace=trace,
            routing=_routing(options, recipients),
            confidence=options.get("confidence", 1.0),
            symbolic_keys=tuple(options.get("symbolic_keys", ())),
            capability_tags=None if tags is None else tuple(tags),
            lineage=options.get("lineage"),
            proof_bundle=options.get("proof_bundle"),
            payload=draft.payload,
            metadata=options.get("metadata"),
        )

    def _trace(self, options: EmitOptions, cause: Packet | None, parent: Parent, packet_id: UUID) -> Trace:
        inherited = cause.trace if cause else None
        session_id = options.get("session_id") or (inherited.session_id if inherited else None)
        if session_id is None:
            raise EmitRefused("SCHEMA_INVALID", "trace.session_id", "nothing caused this packet: give session_id")
        run_id = options.get("run_id") or (inherited.run_id if inherited else session_id)
        task_id = options.get("task_id") or (inherited.task_id if inherited else run_id)
        parent_id, root_id = self._ancestors(parent, cause, packet_id)
        moment, generation = self._sessions.of(session_id).moment, options.get("generation")
        return Trace(
            session_id=session_id,
            run_id=run_id,
            task_id=task_id,
            root_packet_id=root_id,
            parent_packet_id=parent_id,
            generation=moment.generation if generation is None else generation,
            step=moment.step,
            vector_clock=self._sessions.tick(session_id),
        )

    def _ancestors(self, parent: Parent, cause: Packet | None, packet_id: UUID) -> tuple[UUID | None, UUID]:
        if isinstance(parent, Ancestry):
            return None, packet_id
        if isinstance(parent, KnownParent):
            return parent.packet_id, parent.root_packet_id
        if isinstance(parent, Packet):
            return parent.packet_id, parent.trace.root_packet_id
        root = self._sessions.root_of(parent) or (cause.trace.root_packet_id if cause else None)
        if root is None:
            raise EmitRefused(
                "SCHEMA_INVALID",
                "trace.root_packet_id",
                f"the root of parent {parent} is not known: give the packet",
            )
        return parent, root


def _recipients(to: Destination | None, cause: Packet | None) -> tuple[Recipient, ...]:
    if to is None:
        if cause is None:
            raise EmitRefused("UNROUTABLE", "recipients", "nothing caused this packet: say to whom it goes")
        return (Recipient(agent_id=cause.sender.agent_id),)
    listed = (to,) if isinstance(to, str | Recipient) else to
    return tuple(Recipient(agent_id=one) if isinstance(one, str) else one for one in listed)


def _routing(options: EmitOptions, recipients: Sequence[Recipient]) -> Routing:
    timeout = options.get("ack_timeout")
    return Routing(
        delivery_mode=_delivery_mode(recipients),
        priority=options.get("priority", DEFAULT_PRIORITY),
        ttl_ms=_milliseconds(options.get("ttl", DEFAULT_TTL)),
        requires_ack=options.get("requires_ack", False),
        ack_timeout_ms=None if timeout is None else _milliseconds(timeout),
        retry_limit=options.get("retry_limit"),
    )


def _delivery_mode(recipients: Sequence[Recipient]) -> DeliveryMode:
    if len(recipients) != 1:
        return DeliveryMode.MULTICAST
    special = {ALL: DeliveryMode.BROADCAST, SUBSTRATE: DeliveryMode.SUBSTRATE}
    return special.get(recipients[0].agent_id, DeliveryMode.DIRECT)


def _milliseconds(duration: timedelta) -> int:
    return round(duration / timedelta(milliseconds=1))


def _version(payload: Payload) -> str:
    """Return the oldest version of the protocol that has everything in this payload."""
    if isinstance(payload, MessagePayload | OpenEvalPayload) or (
        isinstance(payload, DecisionPayload) and payload.result is not None
    ):
        return PROTOCOL_1_1
    if isinstance(payload, SignalFields) and payload.signal in SIGNALS_OF_1_1:
        return PROTOCOL_1_1
    session = payload.session if isinstance(payload, SignalFields) else None
    return PROTOCOL_VERSION if session is None or first_new_field(session) is None else PROTOCOL_1_1
