"""How a delivery ends: its receipts, and the NACK or ERROR that tells the sender."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import ceil
from types import TracebackType
from typing import Any

from pydantic import JsonValue

from apc_agents.agent import Agent
from apc_agents.effect_maker import UNLOGGED, EffectLog
from apc_agents.effects import EffectError, EffectUnknown
from apc_agents.emission import Draft
from apc_agents.errors import AgentError, ContinuationDiverged, EmitError, EmitUnconfirmed
from apc_agents.handling.handler_context import HandlerContext
from apc_agents.handling.inquiry import failed
from apc_agents.metrics import ENDS, FAILED, count_end
from apc_agents.outbox import ReceiptOutbox
from apc_agents.running.delivery import Inbound
from apc_bus.errors import DeadLetter
from apc_bus.telemetry import fail, get_logger
from apc_contracts.packet import MAX_TTL_MS, Packet, request_of
from apc_contracts.payloads.by_type import ErrorPayload, NackPayload, Payload
from apc_contracts.vocabulary import (
    CONTINUATION_DIVERGED,
    EFFECT_UNKNOWN,
    HANDLER_ERROR,
    WAITED,
    AckStatus,
    Channel,
    DeliveryMode,
    PacketType,
)
from apc_contracts.wire.receipts import Receipt, ReceiptKind, Usage

SILENT_TYPES = frozenset(
    {PacketType.ACK, PacketType.NACK, PacketType.ERROR, PacketType.HEARTBEAT, PacketType.RETRACTION}
)
"""Never answered by ACK, NACK or ERROR, so that no two agents answer each other forever.

Source: docs/specification/contract.md section 12.
"""
MAX_ERROR_LENGTH = 1_000

FailureListener = Callable[[Packet, int, Exception], None]
"""(packet, attempt, exception)"""

_OURS = frozenset({"apc_agents", "apc_bus", "apc_contracts", "apc_minds"})

_log = get_logger("apc_agents")


def _as_the_handler_sees_it(failure: Exception) -> Any:
    """Return what logs an exception; of one that the SDK raised only the lines of the handler's own code.

    Such an error says by itself what is wrong and what mends it: where in the SDK it was raised helps nobody.
    """
    frames, place = list[TracebackType](), failure.__traceback__
    while isinstance(failure, AgentError) and place is not None:
        if not _is_of_the_sdk(place):
            frames.append(place)
        elif frames:
            break
        place = place.tb_next
    shown: TracebackType | None = None
    for frame in reversed(frames):
        shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return failure if shown is None else (type(failure), failure, shown)


def _is_of_the_sdk(place: TracebackType) -> bool:
    package = place.tb_frame.f_globals.get("__name__", "").partition(".")[0]
    return package in _OURS or package in sys.stdlib_module_names


class DeliveryEnds:
    """Reports the ends of one agent's deliveries. A run that goes on after a wait reports those of its ANSWER."""

    def __init__(self, agent: Agent, outbox: ReceiptOutbox, on_failure: FailureListener | None) -> None:
        self._agent = agent
        self._outbox = outbox
        self._on_failure = on_failure

    def report(
        self,
        inbound: Inbound,
        kind: ReceiptKind,
        *,
        usage: Usage | None = None,
        error: str | None = None,
        after: timedelta | None = None,
        may_linger: bool = False,
    ) -> None:
        """Send a receipt of this delivery."""
        if kind in ENDS:
            count_end(self._agent.agent_id, inbound.packet.packet_type, kind.value)
            _log.debug("packet_ended", packet_type=inbound.packet.packet_type.value, end=kind.value)
        if not inbound.has_receipts:
            return
        receipt = Receipt(
            packet_id=inbound.packet.packet_id,
            session_id=inbound.session_id,
            recipient=self._agent.agent_id,
            kind=kind,
            attempt=inbound.attempt,
            usage=usage,
            at=datetime.now(UTC),
            error=None if error is None else error[:MAX_ERROR_LENGTH],
            after_ms=None if not after else min(ceil(after / timedelta(milliseconds=1)), MAX_TTL_MS),
        )
        self._outbox.add(inbound.shard, receipt, may_linger=may_linger)

    def effect_log(self, inbound: Inbound, packet: Packet) -> EffectLog:
        """Return what reports the effects of a run; one that goes on after a wait makes them for its first packet."""
        if inbound.packet.packet_id == packet.packet_id:
            return EffectLog(self._outbox, inbound.shard, inbound.attempt) if inbound.has_receipts else UNLOGGED
        is_delivered = (
            packet.channel is Channel.INTER_AGENT and packet.routing.delivery_mode is not DeliveryMode.SUBSTRATE
        )
        return EffectLog(self._outbox, inbound.shard) if is_delivered else UNLOGGED

    async def reject(self, inbound: Inbound, context: HandlerContext, reason: str) -> None:
        """End a delivery whose handler refuses the packet: a NACK to its sender."""
        packet = context.published
        if packet.packet_type not in SILENT_TYPES and not inbound.is_heard and not context.has_answered:
            nack = NackPayload(
                acked_packet_id=packet.packet_id,
                ack_status=AckStatus.REJECTED,
                reason=reason[:MAX_ERROR_LENGTH],
            )
            is_request = request_of(packet) is not None
            await self._tell(inbound, context, failed(packet, reason) if is_request else nack)
        self.report(inbound, ReceiptKind.REJECT, error=reason)

    async def fail(self, inbound: Inbound, context: HandlerContext, failure: Exception) -> Exception | None:
        """Ask for another attempt while the handler has some left; then the end: an ERROR, and a dead letter."""
        packet = context.published
        text = f"{type(failure).__name__}: {failure}"[:MAX_ERROR_LENGTH]
        # An effect that is unknown, and a handler that has changed, wait for somebody's word.
        may_mend_itself = not isinstance(failure, EffectError | ContinuationDiverged)
        has_retries = may_mend_itself and inbound.has_receipts and inbound.attempt <= self._agent.retries_for(packet)
        fail(failure)
        _log.error(
            "handler_failed",
            agent_id=self._agent.agent_id,
            packet_id=str(packet.packet_id),
            session_id=inbound.session_id,
            packet_type=packet.packet_type.value,
            is_tried_again=has_retries,
            exc_info=_as_the_handler_sees_it(failure),
        )
        if has_retries:
            self.report(inbound, ReceiptKind.RETRY, error=text)
        else:
            count_end(self._agent.agent_id, packet.packet_type, FAILED)
            await self._tell_failure(inbound, context, failure, text)
        if self._on_failure is not None:
            self._on_failure(inbound.packet, inbound.attempt, failure)
        return None if has_retries else DeadLetter(f"handler of {packet.packet_type} {packet.packet_id} failed: {text}")

    async def _tell_failure(self, inbound: Inbound, context: HandlerContext, failure: Exception, text: str) -> None:
        packet, code = context.published, _code_of(failure)
        if packet.packet_type in SILENT_TYPES or inbound.is_heard:
            return
        if request_of(packet) is not None and code == HANDLER_ERROR:
            await self._tell(inbound, context, failed(packet, text))
            return
        details: dict[str, JsonValue] = {"packet_id": str(packet.packet_id), "attempt": inbound.attempt}
        if inbound.packet.packet_id != packet.packet_id:
            details[WAITED] = True
        error = ErrorPayload(error_code=code, message=text, retryable=False, details=details)
        await self._tell(inbound, context, error)

    async def _tell(self, inbound: Inbound, context: HandlerContext, payload: Payload) -> None:
        """Tell the sender how its packet ended; a refusal of that does not change how it ended."""
        packet, answer, emitter = context.published, inbound.packet, context.resources.emitter
        try:
            if answer.packet_id != packet.packet_id:
                # A run that goes on: the ordinals of its packet may be taken by what an earlier run has emitted.
                draft = Draft(payload, to=packet.sender.agent_id, parent=packet)
                await emitter.emit(draft, answer, inbound.attempt - 1)
            else:
                # An attempt that an operator requeues makes the handler's packets and its own end under other ids.
                await emitter.emit(Draft(payload), packet, _BEYOND_HANDLERS + inbound.attempt)
        except EmitUnconfirmed:
            raise
        except EmitError as refused:
            _log.warning("answer_refused", agent_id=self._agent.agent_id, reason=str(refused))


_BEYOND_HANDLERS = 1_000_000
"""Ordinals that no handler reaches."""


def _code_of(failure: Exception) -> str:
    """Return the code of an ERROR; those of UNSETTLED do not halt the session (apc_contracts.session.task)."""
    if isinstance(failure, EffectUnknown):
        return EFFECT_UNKNOWN
    return CONTINUATION_DIVERGED if isinstance(failure, ContinuationDiverged) else HANDLER_ERROR
