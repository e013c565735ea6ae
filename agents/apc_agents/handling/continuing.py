"""Handlers that wait: their records are saved before anything is asked, and they go on with the answer.

A wait is saved in the transaction that saves ctx.state. Then its ASK is published, then the delivery ends. A worker
that dies in between gets the delivery again and publishes the same ASK again. The answer is a packet too: the handler
runs again, with the records of its calls, and the receipts of that run are the answer's.

What is held until the state is saved (`state.py`) is published here too, when a handler waits and when it ends.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from uuid import UUID

from apc_agents.agent import Resources
from apc_agents.emission import Draft, HeldPacket
from apc_agents.errors import ContinuationDiverged, EmitRefused, EmitUnconfirmed
from apc_agents.handling.handler_context import HandlerContext
from apc_agents.handling.inquiry import end_of
from apc_agents.handling.journal import CallJournal, WaitRecord, decode_record, encode_error
from apc_agents.handling.state import SavedWait, StateCache, StateDocument
from apc_agents.ports import remember
from apc_agents.running.delivery import Inbound, is_refusal
from apc_bus.crash_points import crash_point
from apc_bus.telemetry import get_logger
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import AckPayload, NackPayload, SignalPayload
from apc_contracts.vocabulary import AckStatus, DeliveryMode, PacketType, Signal
from apc_contracts.wire.parsing import parse_packet

_log = get_logger("apc_agents")


@dataclass(slots=True)
class Continuation:
    """A run of a handler: the packet that started it, and what is recorded of the run before the last answer."""

    packet: Packet
    record: WaitRecord | None = None
    journal: CallJournal = field(default_factory=CallJournal)

    def enter(self, context: HandlerContext) -> None:
        """Load the records of earlier runs into this run."""
        if self.record is not None:
            context.reported = (self.record.tokens, self.record.cost)


class Waits:
    """The waits of one agent's handlers."""

    def __init__(self, resources: Resources, states: StateCache) -> None:
        self._resources = resources
        self._emitter = resources.emitter
        self._states = states

    async def repeat(self, inbound: Inbound, document: StateDocument) -> bool:
        """Publish again what was emitted and asked when this delivery was handled before; return whether it was.

        Raises EmitUnconfirmed, Retry.
        """
        packet_id = inbound.packet.packet_id
        cause = document.wait_led_to(packet_id)
        if cause is None and not document.was_handled(inbound.key):
            return False
        remembered = []
        for text, cause_id, ordinal, is_remembered in document.unsent_of(packet_id):
            packet = parse_packet(text.encode())
            await self._emitter.publish_prepared(packet, None if cause_id is None else UUID(cause_id), ordinal)
            remembered += [packet] if is_remembered else []
        await self._note_sent(document, packet_id, remembered)
        body = None if cause is None else await self._states.load_wait(inbound.session_id, cause)
        if body is not None:
            await self._publish(decode_record(body))
        return True

    async def continuation(self, inbound: Inbound, document: StateDocument) -> Continuation | str:
        """Return the run that a delivery starts; for an answer that starts none, why not.

        Raises StateStale: another worker has saved the state.
        """
        packet = inbound.packet
        ask = _answered(packet)
        if ask is None:
            return Continuation(packet)
        cause = document.wait_of(ask)
        body = None if cause is None else await self._states.load_wait(inbound.session_id, cause)
        if cause is None or body is None:
            document.use()  # the wait may be another worker's
            return Continuation(packet) if packet.packet_type is PacketType.NACK else "no handler waits for this answer"
        record = decode_record(body)
        asked = record.find(ask)
        if asked is None or (asked.end is None and record.has_ended(asked.group)):
            return "no handler waits for this answer"
        asked.end = _end(packet)
        if not record.is_answered:
            await self._states.save(document, inbound.key, SavedWait(cause, record.encode()))
            return "other answers are missing"
        if any(one.end is None for one in record.asked):
            # A later answer must not change how the wait has ended when this delivery is handled again.
            await self._states.save(document, None, SavedWait(cause, record.encode()))
        return self._resume(record, document)

    async def suspend(self, inbound: Inbound, context: HandlerContext, run: Continuation) -> None:
        """Save the wait with the state, then publish what it asks. Raises StateStale, EmitUnconfirmed, AgentError."""
        pending, document, before = context.journal.pending, context.document, run.record
        assert pending is not None, "only a run that waits is suspended"
        record = WaitRecord(
            packet=run.packet,
            rights=tuple(sorted(context.rights)),
            entries=context.journal.entries(),
            states=[*([] if before is None else before.states), document.found_state()],
            tokens=max(context.used_tokens, context.reported[0]),
            cost=max(context.used_cost, context.reported[1]),
            ack_ordinal=_ack_ordinal(context) if before is None else before.ack_ordinal,
            seconds=(0.0 if before is None else before.seconds) + monotonic() - context.began,
        )
        cause = run.packet.packet_id
        context.is_ended = True
        document.end_waits(cause)
        for asked in record.asked:
            document.waits[str(asked.packet.packet_id)] = [str(cause), str(inbound.packet.packet_id)]
        body = record.encode()
        await self._refresh_held(document)
        crash_point("worker.before_wait")
        await self._states.save(document, inbound.key, SavedWait(cause, body))
        crash_point("worker.after_wait")
        await self._publish_held(document, inbound.packet.packet_id)
        await self._publish(record)

    async def finish(self, inbound: Inbound, context: HandlerContext, run: Continuation) -> None:
        """Save the state at the end of a run, forget its waits, and publish what is held.

        Raises StateStale, Retry.
        """
        context.is_ended = True
        wait = None
        if run.record is not None:
            context.document.end_waits(run.packet.packet_id)
            wait = SavedWait(run.packet.packet_id, None)
            crash_point("worker.before_continued")
        await self._refresh_held(context.document)
        crash_point("worker.before_state")
        await self._states.save(context.document, inbound.key, wait)
        crash_point("worker.after_state")
        if run.record is not None:
            crash_point("worker.after_continued")
        await self._publish_held(context.document, inbound.packet.packet_id)

    async def _refresh_held(self, document: StateDocument) -> None:
        document.held = [await self._emitter.refreshed(one) for one in document.held]

    async def _publish_held(self, document: StateDocument, packet_id: UUID) -> None:
        """Publish what the handler of a packet has emitted about the state that is now saved."""
        held, document.held = document.held, []
        if not held:
            return
        for one in held:
            await self._publish_surely(one)
        await self._note_sent(document, packet_id, [one.built.packet for one in held if one.is_remembered])

    async def _publish_surely(self, held: HeldPacket) -> None:
        """Publish until the broker confirms: the state is saved, and the handler does not run again."""
        while True:
            try:
                return await self._emitter.publish_held(held)
            except EmitUnconfirmed as error:
                _log.warning("emission_unconfirmed", packet_id=str(held.built.packet.packet_id), reason=str(error))

    async def _note_sent(self, document: StateDocument, packet_id: UUID, remembered: Sequence[Packet]) -> None:
        crash_point("worker.after_held")
        if remembered:
            await remember(remembered, self._resources.agent.agent_id, self._resources.memory)
        self._states.note_sent(document, packet_id)

    def _resume(self, record: WaitRecord, document: StateDocument) -> Continuation:
        states = record.states
        document.value = deepcopy(states[0])

        def pass_wait(number: int) -> None:
            document.value = deepcopy(states[number]) if number < len(states) else document.found_state()

        return Continuation(record.packet, record, CallJournal(record.entries, pass_wait, record.seconds))

    async def _publish(self, record: WaitRecord) -> None:
        """Send the ACK that the sender waits for, and the questions; sent before, they are repeats."""
        packet = record.packet
        if record.ack_ordinal is not None:
            payload = AckPayload(acked_packet_id=packet.packet_id, ack_status=AckStatus.ACCEPTED)
            await self._emitter.emit(Draft(payload), packet, record.ack_ordinal)
        for asked in record.asked:
            if asked.end is None:
                await self._emitter.publish_prepared(asked.packet, packet.packet_id, asked.ordinal)
        crash_point("worker.after_ask")


def diverged(context: HandlerContext) -> ContinuationDiverged | None:
    """Return the error of a run that has left its records."""
    where = context.journal.divergence
    return None if where is None else ContinuationDiverged(where)


def _ack_ordinal(context: HandlerContext) -> int | None:
    routing = context.packet.routing
    is_for_all = routing.delivery_mode is DeliveryMode.SUBSTRATE
    is_wanted = routing.requires_ack and not is_for_all and not context.has_answered
    return context.ack_ordinal if is_wanted else None


def _answered(packet: Packet) -> Any:
    """Return the ASK that a packet answers: an ANSWER, or the gate's refusal of the ASK."""
    payload = packet.payload
    if isinstance(payload, SignalPayload) and payload.signal is Signal.ANSWER:
        return packet.trace.parent_packet_id
    if isinstance(payload, NackPayload) and is_refusal(packet):
        return payload.acked_packet_id
    return None


def _end(packet: Packet) -> dict[str, Any]:
    """Return how a question ended, as the records keep it."""
    payload = packet.payload
    if isinstance(payload, SignalPayload) and payload.answer is not None:
        return end_of(packet, payload.answer)
    told = (packet.metadata or {}).get("refusal")
    refused = EmitRefused.of(told if isinstance(told, dict) else {})
    return {"raised": encode_error("ask", refused)}
