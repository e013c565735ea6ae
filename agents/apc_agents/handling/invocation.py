"""One run of a handler: what the SDK keeps of it, and how its packets leave. HandlerContext is its public face."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

from pydantic import JsonValue

from apc_agents.agent import Agent
from apc_agents.effect_maker import UNLOGGED, EffectLog, is_making_effect
from apc_agents.effects import EffectError, Scope
from apc_agents.emission import Built, Draft, Emission, HeldPacket, LocalCoordination
from apc_agents.errors import AgentError, MemoryUnavailable, Retry, StaleRevision
from apc_agents.handling.inquiry import Inquiry, evidence_of
from apc_agents.handling.journal import Asked, CallJournal, barred
from apc_agents.ports import BaseMemoryStore, require_mind, without_mind
from apc_agents.running.delivery import SessionKnowledge
from apc_bus.telemetry import get_logger
from apc_contracts.agent import AgentContext, ContextMessage
from apc_contracts.identity.ids import reply_id
from apc_contracts.packet import TYPE_OF_PAYLOAD, Packet, Recipient
from apc_contracts.payloads.by_type import AckPayload, NackPayload, Payload, SignalPayload
from apc_contracts.vocabulary import CONTROL_TYPES, Right, Signal
from apc_contracts.wire.parsing import payload_hash
from apc_contracts.wire.receipts import Usage

if TYPE_CHECKING:
    from apc_agents.effect_maker import EffectMaker
    from apc_agents.emitter import Emitter
    from apc_agents.handling.state import StateDocument
    from apc_agents.task_port import TaskStore
    from apc_bus.artifacts import ArtifactStore

# The context object of one run of a handler, and the conversation that it belongs to.

MEMORY_AWAY_AFTER = timedelta(seconds=5)
"""When a packet is tried again whose conversation could not be read or written."""


class Snapshot:
    """The context object of a packet: made when it is first asked for, and the same from then on.

    Every method raises Retry when the memory store does not answer.
    """

    def __init__(self, agent: Agent, packet: Packet, memory: BaseMemoryStore, *, is_paused: bool) -> None:
        self._agent = agent
        self._packet = packet
        self._source = require_mind("ctx.snapshot").snapshots(memory)
        self._anomalies = ("session_paused",) if is_paused else ()
        self._context: AgentContext | None = None
        self._is_recorded = False

    def heard(self) -> ContextMessage:
        """Return the packet as a message of its conversation."""
        return self._source.heard(self._packet)

    async def preview(self) -> AgentContext:
        """Return the context object without taking the packet into the conversation.

        Raises:
            Reject: `metadata.agent_context` of the packet does not fit the protocol.
        """
        if self._context is None:
            focus = self._agent.actor.capabilities or ()
            with _retried():
                self._context = await self._source.assemble(
                    self._packet, self._agent.agent_id, focus=focus, anomalies=self._anomalies
                )
        return self._context

    async def take(self) -> AgentContext:
        """Return the context object; the packet now belongs to the conversation. Raises as `preview`."""
        context = await self.preview()
        if not self._is_recorded:
            await self._record(self._packet)
            self._is_recorded = True
        return context

    async def follow(self, emitted: Packet) -> None:
        """Take what the handler has emitted into the conversation."""
        await self._record(emitted)

    def is_followed_by(self, draft: Draft) -> bool:
        """Return whether an emission belongs to the conversation, as the handled packet does."""
        session_id = self._packet.trace.session_id
        return self._is_recorded and draft.options.get("session_id") in (None, session_id)

    async def pass_over(self) -> None:
        """Leave the packet out of what this agent is told later."""
        with _retried():
            await self._source.pass_over(self._packet, self._agent.agent_id)

    async def _record(self, packet: Packet) -> None:
        with _retried():
            await self._source.record(packet, self._agent.agent_id)


async def remember(packets: Iterable[Packet], agent_id: str, memory: BaseMemoryStore) -> None:
    """Take emissions into their session's conversation. Raises Retry when the memory store does not answer."""
    source = require_mind("ctx.memory").snapshots(memory)
    for packet in packets:
        with _retried():
            await source.record(packet, agent_id)


@contextmanager
def _retried() -> Iterator[None]:
    """Raise Retry where the memory is away, or everybody writes to it: another attempt of the packet helps."""
    try:
        yield
    except (MemoryUnavailable, StaleRevision) as error:
        raise Retry(MEMORY_AWAY_AFTER, str(error)) from error


MAX_HELD_BYTES = 4 * 1024 * 1024
"""Of the packets that wait for the state to be saved. Beyond it they leave before: the document would be too large."""

ResultT = TypeVar("ResultT")

_log = get_logger("apc_agents")
# A task begins with the evidence of the task that started it; so the same packet has the same evidence in each run.

_cited: Final[ContextVar[tuple[str, ...]]] = ContextVar("apc_cited", default=())
"""What this task names as evidence in the packets that it emits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What all runs of the handlers of a worker share."""

    agent: Agent
    emitter: "Emitter"
    effects: "EffectMaker"
    memory_store: BaseMemoryStore | None
    """None where no mind is installed."""
    artifacts: "ArtifactStore | None" = None
    tasks: "TaskStore | None" = None

    @property
    def memory(self) -> BaseMemoryStore:
        """The memory. Raises AgentError where no mind is installed."""
        if self.memory_store is None:
            raise without_mind("ctx.memory")
        return self.memory_store


class Invocation:
    """One run of a handler: its packet, its state, and what it has emitted and spent.

    What a handler may call stands in HandlerContext.
    """

    def __init__(
        self,
        resources: Resources,
        packet: Packet | None,
        document: "StateDocument",
        knowledge: SessionKnowledge,
        coordination: LocalCoordination,
        rights: frozenset[Right] = frozenset(),
        journal: CallJournal | None = None,
    ) -> None:
        self.resources = resources
        self.effect_log: EffectLog = UNLOGGED
        self.document = document
        self.knowledge = knowledge
        self.coordination = coordination
        self.rights = rights
        """Of the packet's sender."""
        self.journal = journal or CallJournal()
        """The handler's calls."""
        self.task: asyncio.Task[Any] | None = asyncio.current_task()
        self.reported = (0, 0.0)
        """Tokens and cost that an earlier run of the same handler has reported."""
        self.not_handled: str | None = None
        """Why the packet was passed over; None when its handler ran."""
        self.has_answered = False
        """Whether the handler itself has emitted an ACK or NACK of its packet."""
        self.is_acknowledged = False
        """Whether the SDK has sent the required ACK at the first wait."""
        self.result_metadata: Mapping[str, JsonValue] | None = None
        """What the packets say beside the payloads that the handler returns."""
        self.is_ended = False
        """Whether the handler has ended: what its tasks still emit leaves at once."""
        self.ack_ordinal = 0
        """Of the ACK that the SDK sends if the handler waits now for the first time."""
        self.used_tokens = 0
        self.used_cost = 0.0
        self.tool_failures: dict[str, EffectError] = {}
        """Effects of tools that need somebody's word, by their keys: a framework may have hidden their errors."""
        self._emitted: dict[UUID, Built] = {}
        """What this run has emitted."""
        self._packet = self._published = packet
        self._snapshot: Snapshot | None = None
        self._began = monotonic()
        self._ordinal = 0
        self._origins = 0
        self._held_bytes = 0
        self._beside: Counter[str] = Counter()
        """How often the same was said in tasks that the handler has started."""
        _cited.set(())

    @property
    def agent_id(self) -> str:
        """The agent whose handler runs."""
        return self.resources.agent.agent_id

    @property
    def packet(self) -> Packet:
        """The handled packet. Raises AgentError in on_start, where there is none."""
        if self._packet is None:
            raise AgentError("on_start has no packet: give session_id, run_id, task_id and to yourself")
        return self._packet

    @property
    def published(self) -> Packet:
        """The handled packet as it was published: where it was too large, with hashes in the place of long texts.

        An endorsement signs the payload_hash of this one. Raises AgentError in on_start.
        """
        if self._published is None:
            raise AgentError("on_start has no packet")
        return self._published

    def open(self, packet: Packet) -> Packet:
        """Take the handled packet with its long texts; return it."""
        self._packet = packet
        return packet

    @property
    def context_object(self) -> Snapshot:
        """The context object of the packet. Raises AgentError in on_start."""
        if self._snapshot is None:
            is_paused = self.knowledge.sync is not None and self.knowledge.sync.paused
            self._snapshot = Snapshot(self.resources.agent, self.packet, self.resources.memory, is_paused=is_paused)
        return self._snapshot

    @property
    def usage(self) -> Usage | None:
        """What the handler has spent; None when it has reported nothing."""
        tokens, cost = max(0, self.used_tokens - self.reported[0]), max(0.0, self.used_cost - self.reported[1])
        return Usage(tokens=tokens or None, cost=cost or None) if tokens or cost else None

    def undo(self) -> None:
        """Forget what the handler changed and what was held, and end the invocation in LOCAL_HALT."""
        self.is_ended = True
        self.has_answered &= not any(self._is_answer(one.built.packet.payload) for one in self.document.held)
        self.document.reset()
        self.coordination.halt()

    @property
    def effect_scope(self) -> Scope:
        """What the effects of this invocation belong to. Raises AgentError in on_start."""
        return Scope.of(self.packet, self.agent_id)

    async def _effect_call(self, op: str, key: str, make: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Make a call about an effect. Within the function of another effect it is no call of the run.

        A run that goes on does not come to it: the outer effect has its result already.
        """
        return await (make() if is_making_effect() else self.journal.call(op, lambda: key, make))

    def _cite(self, references: Sequence[str]) -> None:
        """Name these as evidence in what is emitted from now on, by this task and those that it starts."""
        _cited.set(tuple(dict.fromkeys((*_cited.get(), *references))))

    def _with_evidence(self, draft: Draft) -> Draft:
        session_id, packet = draft.options.get("session_id"), self._packet
        is_elsewhere = packet is not None and session_id not in (None, packet.trace.session_id)
        return draft if is_elsewhere or not _rests_on_evidence(draft.payload) else draft.citing(_cited.get())

    async def _emit(self, draft: Draft) -> Packet:
        """Emit a packet of the handler. Raises as HandlerContext.emit."""
        draft = self._with_evidence(draft)
        ordinal = self._ordinal_of(draft)
        self.has_answered |= self._is_answer(draft.payload)

        async def send() -> Packet:
            is_remembered = self._snapshot is not None and self._snapshot.is_followed_by(draft)
            with self.coordination.emission() as emission:
                return await self._send(draft, ordinal, emission, is_remembered=is_remembered)

        packet = await self.journal.call("emit", partial(said_in, draft), send)
        self._emitted[packet.packet_id] = self._built(packet, ordinal)
        return packet

    def _built(self, packet: Packet, ordinal: int) -> Built:
        """Return an emitted packet with what its id follows from, if it follows from anything."""
        cause = None if self._packet is None else self._packet.packet_id
        is_derived = cause is not None and reply_id(cause, self.agent_id, ordinal) == packet.packet_id
        return Built(packet, cause, ordinal) if is_derived else Built(packet)

    async def _accepted(self, packet: Packet | UUID) -> None:
        """Wait until the gate has accepted a packet of this agent. Raises as Emitter.accepted; AgentError."""
        if isinstance(packet, Packet):
            emitted = self._emitted.get(packet.packet_id, Built(packet))
        elif packet in self._emitted:
            emitted = self._emitted[packet]
        else:
            raise AgentError(f"after={packet}: this run has emitted no packet with that id: give the packet itself")
        if emitted.packet.sender.agent_id != self.agent_id:
            raise AgentError(
                f"after={emitted.packet.packet_id}: it is a packet of {emitted.packet.sender.agent_id}, which has "
                "reached this handler and so was accepted: give one that the handler has emitted"
            )
        await self._release()
        await self.resources.emitter.accepted(emitted)

    def _is_answer(self, payload: Payload) -> bool:
        if not isinstance(payload, AckPayload | NackPayload):
            return False
        return self._packet is not None and payload.acked_packet_id == self._packet.packet_id

    async def _send(self, draft: Draft, ordinal: int, emission: Emission, *, is_remembered: bool = False) -> Packet:
        """Publish a packet, or hold it until the state is saved that the handler has changed. Raises StateInvalid."""
        emitter, document = self.resources.emitter, self.document
        is_held = not self.is_ended and bool(document.held or document.is_changed) and self._packet is not None
        if is_held and draft.options.get("requires_ack"):
            await self._release()
            is_held = False
        if not is_held:
            return await self._follow(await emitter.emit(draft, self._packet, ordinal, emission), is_remembered)
        held = await emitter.hold(draft, self._packet, ordinal, emission, is_remembered=is_remembered)
        if self.is_ended:  # meanwhile
            await self._publish(held)
            return held.built.packet
        document.held.append(held)
        self._held_bytes += len(held.publication.message.body)
        if self._held_bytes > MAX_HELD_BYTES:
            _log.warning("emissions_not_held", agent_id=self.agent_id, bytes=self._held_bytes, limit=MAX_HELD_BYTES)
            await self._release()
        return held.built.packet

    def _check_state(self) -> None:
        """Raise StateInvalid when the state cannot be saved: nothing is sent or done about it."""
        _ = self.document.is_changed

    async def _release(self) -> None:
        """Publish what is held before the state is saved. Raises StateInvalid."""
        self._check_state()
        self._held_bytes, held = 0, self.document.held
        while held:
            one = held.pop(0)
            try:
                await self._publish(one)
            except BaseException:
                held.insert(0, one)
                raise

    async def _publish(self, held: HeldPacket) -> None:
        await self.resources.emitter.publish_held(held)
        await self._follow(held.built.packet, held.is_remembered)

    async def _follow(self, packet: Packet, is_remembered: bool) -> Packet:
        if is_remembered and self._snapshot is not None:
            await self._snapshot.follow(packet)
        return packet

    async def _wait_for(self, inquiries: Sequence[Inquiry[Any]]) -> list[Any]:
        """End this run until all of this is answered; in the run that follows, return the outcomes in their order.

        Raises:
            Suspended: the run is over.
            AskTimeout, RequestFailed, EmitRefused: how the first that failed ended.
            AgentError: the handler cannot wait here.
        """
        ordinals = []
        if not self.journal.is_beside:
            ordinals = [self._next_ordinal() for one in inquiries for _ in range(one.count)]
            self.ack_ordinal = self._next_ordinal()
            await self.journal.caught_up()
        op = inquiries[0].op if len(inquiries) == 1 else "gather"
        subject = partial(_asked, inquiries)
        entry = self.journal.next_recorded(op, subject)
        if entry is not None and not entry.is_wait:
            self.journal.replay(entry)
        if entry is not None:
            self.is_acknowledged = True
            asked = self.journal.pass_wait(entry)
            self._ordinal = max(self._ordinal, asked[-1].ordinal + 2)  # the last one's, and that of the ACK
            self._cite(evidence_of(asked))
            groups = [[one for one in asked if one.group == number] for number in range(len(inquiries))]
            return [inquiry.outcome(group) for inquiry, group in zip(inquiries, groups, strict=True)]
        try:
            self._check_may_wait()
            self._check_state()
            asked = await self._prepared(inquiries, ordinals)
        except Exception as error:
            self.journal.note_error(op, subject, error)
            raise
        await self.journal.close()
        raise self.journal.wait(op, subject, asked)

    async def _prepared(self, inquiries: Sequence[Inquiry[Any]], ordinals: Sequence[int]) -> list[Asked]:
        now, prepare = datetime.now(UTC), self.resources.emitter.prepare
        drafts = [(group, draft) for group, one in enumerate(inquiries) for draft in one.drafts(now)]
        return [
            Asked(await prepare(self._with_evidence(draft), self._packet, ordinal), ordinal, group=group)
            for (group, draft), ordinal in zip(drafts, ordinals, strict=True)
        ]

    def _check_may_wait(self) -> None:
        if self._packet is None:
            raise AgentError("on_start cannot wait: ask in the handler of a packet")
        if (remedy := barred()) is not None:
            raise AgentError(remedy)
        if asyncio.current_task() is not self.task or is_making_effect():
            raise AgentError("a wait stands in the handler itself: await it outside asyncio.gather, tasks and ctx.once")
        if not self.knowledge.moment.contract:
            raise AgentError("only a session of apc/1.1 with its own contract knows questions: open one for it")
        self.journal.check_room()

    @property
    def seconds(self) -> float:
        """How long this run has taken."""
        return monotonic() - self._began

    def _ordinal_of(self, draft: Draft) -> int:
        """Return the number from which the id of an emission follows; the same when the handler runs again.

        The handler itself counts. Tasks that it has started emit in another order in each run, so their numbers
        follow from what they say: beyond all that are counted, and within what JSON holds.
        """
        if not self.journal.is_beside:
            return self._next_ordinal()
        said = said_in(draft)
        self._beside[said] += 1
        digest = sha256(f"{said}/{self._beside[said]}".encode()).digest()
        return int.from_bytes(digest[:6], "big") | 1 << 48

    def _next_ordinal(self) -> int:
        ordinal, self._ordinal = self._ordinal, self._ordinal + 1
        return ordinal


def _rests_on_evidence(payload: Payload) -> bool:
    """Return whether a payload says something that evidence can bear out; most control packets do not."""
    if isinstance(payload, SignalPayload):
        return payload.signal in (Signal.ASK, Signal.ANSWER)
    return TYPE_OF_PAYLOAD.get(type(payload)) not in CONTROL_TYPES


def said_in(draft: Draft) -> str:
    """Return the text by which an emission is recognised in another run of the handler."""
    to = draft.options.get("to")
    listed = () if to is None else (to,) if isinstance(to, str | Recipient) else to
    names = ",".join(one.agent_id if isinstance(one, Recipient) else str(one) for one in listed)
    return f"{type(draft.payload).__name__} {payload_hash(draft.payload)[:16]} to {names or 'its sender'}"


def _asked(inquiries: Sequence[Inquiry[Any]]) -> str:
    """Return the text by which a wait is recognised in another run of the handler."""
    if len(inquiries) == 1:
        return inquiries[0].subject()
    return " ".join(f"{one.op}({one.subject()})" for one in inquiries)
