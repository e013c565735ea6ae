"""One run of a handler: what the SDK keeps of it, and HandlerContext shows of it."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from time import monotonic
from typing import Any, Final
from uuid import UUID, uuid5

import structlog
from pydantic import JsonValue

from apc_agents.agent import Agent
from apc_agents.agent_context import ContextAssembler
from apc_agents.clearance import Trigger
from apc_agents.effect_maker import UNLOGGED, EffectLog, EffectMaker, is_making_effect
from apc_agents.emission import NOT_FOLLOWED, Built, Draft, Emission, HeldPacket, LocalCoordination
from apc_agents.emitter import Emitter
from apc_agents.errors import AgentError, Retry
from apc_agents.handling.inquiry import Inquiry, evidence_of
from apc_agents.handling.journal import Asked, CallJournal, barred
from apc_agents.handling.state import StateDocument
from apc_agents.memory.conversation import ConversationMessage, MemoryUnavailable, NewMessages, StaleRevision
from apc_agents.memory.store import BaseMemoryStore
from apc_agents.running.delivery import SessionKnowledge
from apc_agents.tasks.store import TaskStore
from apc_bus.artifacts import ArtifactStore
from apc_contracts.agent import AgentContext
from apc_contracts.identity.ids import reply_id
from apc_contracts.packet import TYPE_OF_PAYLOAD, Packet, Recipient
from apc_contracts.payloads.by_type import AckPayload, NackPayload, Payload, SignalPayload
from apc_contracts.vocabulary import CONTROL_TYPES, Right, Signal
from apc_contracts.wire.parsing import payload_hash
from apc_contracts.wire.receipts import Usage

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
        self._assembler = ContextAssembler(memory)
        self._anomalies = ("session_paused",) if is_paused else ()
        self._context: AgentContext | None = None
        self._is_recorded = False

    async def preview(self) -> AgentContext:
        """Return the context object without taking the packet into the conversation.

        Raises:
            Reject: `metadata.agent_context` of the packet does not fit the protocol.
        """
        if self._context is None:
            focus = self._agent.actor.capabilities or ()
            with _retried():
                self._context = await self._assembler.assemble(
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
            await self._assembler.pass_over(self._packet, self._agent.agent_id)

    async def _record(self, packet: Packet) -> None:
        with _retried():
            await self._assembler.record(packet, self._agent.agent_id)


async def remember(packets: Iterable[Packet], agent_id: str, memory: BaseMemoryStore) -> None:
    """Take emissions into their session's conversation. Raises Retry when the memory store does not answer."""
    assembler = ContextAssembler(memory)
    for packet in packets:
        with _retried():
            await assembler.record(packet, agent_id)


@contextmanager
def _retried() -> Iterator[None]:
    """Raise Retry where the memory is away, or everybody writes to it: another attempt of the packet helps."""
    try:
        yield
    except (MemoryUnavailable, StaleRevision) as error:
        raise Retry(MEMORY_AWAY_AFTER, str(error)) from error


MAX_HELD_BYTES = 4 * 1024 * 1024
"""Of the packets that wait for the state to be saved. Beyond it they leave before: the document would be too large."""

_log = structlog.get_logger("apc_agents")
# A task begins with the evidence of the task that started it; so the same packet has the same evidence in each run.

_cited: Final[ContextVar[tuple[str, ...]]] = ContextVar("apc_cited", default=())
"""What this task names as evidence in the packets that it emits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What all runs of the handlers of a worker share."""

    agent: Agent
    emitter: Emitter
    effects: EffectMaker
    memory: BaseMemoryStore
    artifacts: ArtifactStore | None = None
    tasks: TaskStore | None = None


class Invocation:
    """One run of a handler: its packet, its state, and what it has emitted and spent."""

    def __init__(
        self,
        resources: Resources,
        packet: Packet | None,
        document: StateDocument,
        knowledge: SessionKnowledge,
        coordination: LocalCoordination,
        sender_rights: frozenset[Right] = frozenset(),
        journal: CallJournal | None = None,
    ) -> None:
        self.resources = resources
        self.effect_log: EffectLog = UNLOGGED
        self.document = document
        self.knowledge = knowledge
        self.coordination = coordination
        self.sender_rights = sender_rights
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
        """The handled packet as it was published. Raises AgentError in on_start."""
        if self._published is None:
            raise AgentError("on_start has no packet")
        return self._published

    def open(self, packet: Packet) -> Packet:
        """Take the handled packet with its long texts; return it."""
        self._packet = packet
        return packet

    @property
    def trigger(self) -> Trigger:
        """Who caused this invocation. Raises AgentError in on_start."""
        return Trigger.of(self.packet, self.sender_rights, self.resources.agent.clearance)

    @property
    def snapshot(self) -> Snapshot:
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

    def say(self, messages: Sequence[ConversationMessage], user_id: str) -> None:
        """Add messages to the session's conversation when the state is saved."""
        session_id = self.packet.trace.session_id
        self.document.messages = NewMessages(session_id, user_id, self.agent_id, tuple(messages))

    def undo(self) -> None:
        """Forget what the handler changed and what was held, and end the invocation in LOCAL_HALT."""
        self.is_ended = True
        self.has_answered &= not any(self._is_answer(one.built.packet.payload) for one in self.document.held)
        self.document.reset()
        self.coordination.halt()

    def cite(self, references: Sequence[str]) -> None:
        """Name these as evidence in what is emitted from now on, by this task and those that it starts."""
        _cited.set(tuple(dict.fromkeys((*_cited.get(), *references))))

    def _with_evidence(self, draft: Draft) -> Draft:
        session_id, packet = draft.options.get("session_id"), self._packet
        is_elsewhere = packet is not None and session_id not in (None, packet.trace.session_id)
        return draft if is_elsewhere or not _rests_on_evidence(draft.payload) else draft.citing(_cited.get())

    async def emit(self, draft: Draft) -> Packet:
        """Emit a packet of the handler. Raises as HandlerContext.emit."""
        draft = self._with_evidence(draft)
        ordinal = self._ordinal_of(draft)
        self.has_answered |= self._is_answer(draft.payload)
        packet = await self.journal.call("emit", partial(_said, draft), partial(self._emit, draft, ordinal))
        self._emitted[packet.packet_id] = self._built(packet, ordinal)
        return packet

    def _built(self, packet: Packet, ordinal: int) -> Built:
        """Return an emitted packet with what its id follows from, if it follows from anything."""
        cause = None if self._packet is None else self._packet.packet_id
        is_derived = cause is not None and reply_id(cause, self.agent_id, ordinal) == packet.packet_id
        return Built(packet, cause, ordinal) if is_derived else Built(packet)

    async def accepted(self, packet: Packet | UUID) -> None:
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

    async def _emit(self, draft: Draft, ordinal: int) -> Packet:
        is_remembered = self._snapshot is not None and self._snapshot.is_followed_by(draft)
        with self.coordination.emission() as emission:
            return await self._send(draft, ordinal, emission, is_remembered=is_remembered)

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

    def check_state(self) -> None:
        """Raise StateInvalid when the state cannot be saved: nothing is sent or done about it."""
        _ = self.document.is_changed

    async def _release(self) -> None:
        """Publish what is held before the state is saved. Raises StateInvalid."""
        self.check_state()
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

    async def wait(self, inquiries: Sequence[Inquiry[Any]]) -> list[Any]:
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
            self.cite(evidence_of(asked))
            groups = [[one for one in asked if one.group == number] for number in range(len(inquiries))]
            return [inquiry.outcome(group) for inquiry, group in zip(inquiries, groups, strict=True)]
        try:
            self._check_may_wait()
            self.check_state()
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

    async def answer(self, payload: Payload) -> Packet:
        """Emit the SDK's own answer to the handled packet (ACK, NACK, ERROR). Raises as `emit`."""
        draft = Draft(payload)
        ordinal = self._ordinal_of(draft)

        send = partial(self._send, draft, ordinal, NOT_FOLLOWED)
        return await send() if self.journal.is_over else await self.journal.call("answer", partial(_said, draft), send)

    def new_origin(self) -> UUID:
        """Return an id that is the same when the handler runs again. Raises AgentError in on_start."""
        if self.journal.is_beside:
            name = f"beside/{self.journal.place}"
            self._beside[name] += 1
            return uuid5(self.packet.packet_id, f"{self.agent_id}/origin/{name}/{self._beside[name]}")
        self._origins += 1
        return uuid5(self.packet.packet_id, f"{self.agent_id}/origin/{self._origins}")

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
        said = _said(draft)
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


def _said(draft: Draft) -> str:
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
