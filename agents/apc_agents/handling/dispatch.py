"""What becomes of one packet: handler, emissions, state, receipts, and the broker's answer."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from math import ceil
from time import perf_counter
from typing import Any

import structlog
from opentelemetry.trace import SpanKind

from apc_agents.agent_context.messages import context_message, message_of
from apc_agents.effects import EffectError
from apc_agents.emitting.claim_checks import ClaimChecks
from apc_agents.emitting.draft import Draft
from apc_agents.emitting.outbox import ReceiptOutbox
from apc_agents.errors import AgentError, EmitError, EmitUnconfirmed, Reject, Retry, StateStale
from apc_agents.handling.coordination import LocalCoordination, LocalTransition
from apc_agents.handling.handler_context import HandlerContext
from apc_agents.handling.invocation import Invocation, Resources
from apc_agents.handling.state_cache import StateCache, StateDocument
from apc_agents.metrics import ENDS, FAILED, count_end, time_handler
from apc_agents.phase import KnownSessions
from apc_agents.receiving.delivery import Inbound
from apc_agents.signature import AnyHandler
from apc_agents.typed.handlers import payloads_of
from apc_bus.errors import DeadLetter, GiveBack
from apc_bus.observability.telemetry import begin_subject, end_subject
from apc_bus.observability.tracing import describe, fail, in_span
from apc_contracts.agent.local_walk import INTRA_AGENT_MACHINE
from apc_contracts.contract.contract import Contract
from apc_contracts.envelope.packet import Packet
from apc_contracts.envelope.parts import MAX_TTL_MS
from apc_contracts.identity.registry import Right
from apc_contracts.payloads.by_type import AckPayload, ErrorPayload, NackPayload, Payload
from apc_contracts.vocabulary import CONTROL_TYPES, AckStatus, DeliveryMode, PacketType
from apc_contracts.wire.receipts import Receipt, ReceiptKind, Usage

SILENT_TYPES = frozenset(
    {PacketType.ACK, PacketType.NACK, PacketType.ERROR, PacketType.HEARTBEAT, PacketType.RETRACTION}
)
"""Never answered by ACK, NACK or ERROR, so that no two agents answer each other forever.

Source: docs/specification/contract.md section 12.
"""
MAX_STALE_RUNS = 5
"""Runs of a handler whose state another worker saves meanwhile, before the gate is asked to route it again."""
MAX_ERROR_LENGTH = 1_000

FailureListener = Callable[[Packet, int, Exception], None]
"""(packet, attempt, exception)"""
InvocationListener = Callable[[Packet, tuple[LocalTransition, ...]], None]
"""(packet, the steps of intra_agent_coordination); told of every run of a handler that emitted something."""

_log = structlog.get_logger("apc_agents")


class Dispatcher:
    """Runs an agent's handlers. Everything it decides ends in receipts, and then in the delivery's own end."""

    def __init__(
        self,
        resources: Resources,
        outbox: ReceiptOutbox,
        states: StateCache,
        sessions: KnownSessions,
        contract: Contract,
        claim_checks: ClaimChecks,
        *,
        on_failure: FailureListener | None = None,
        on_invocation: InvocationListener | None = None,
    ) -> None:
        self._resources = resources
        self._agent = resources.agent
        self._outbox = outbox
        self._states = states
        self._sessions = sessions
        self._machine = contract.machine(INTRA_AGENT_MACHINE)
        self._claim_checks = claim_checks
        self._on_failure = on_failure
        self._on_invocation = on_invocation

    async def process(self, inbound: Inbound) -> None:
        """Handle a packet; its delivery ends once everything reported about it is confirmed."""
        packet = inbound.packet
        subject = begin_subject(inbound.log_ids)
        try:
            with in_span("process", packet.packet_type, SpanKind.CONSUMER, inbound.trace):
                describe(packet)
                await self._process_within(inbound)
        finally:
            end_subject(subject)

    async def _process_within(self, inbound: Inbound) -> None:
        try:
            error = await self._process(inbound)
        except asyncio.CancelledError:
            self._outbox.settle(inbound.done, GiveBack("the worker stopped while its handler ran"))
            raise
        except Exception as failure:
            error = failure  # the adapter logs it and gives the packet back, up to its delivery limit
        self._outbox.settle(inbound.done, error)

    async def start(self, starter: AnyHandler, session_id: str) -> None:
        """Run an on_start function over the agent's own document."""
        document = await self._states.open(session_id)
        await starter(HandlerContext(self._invocation(None, document, session_id)))
        await self._states.save(document, None)

    async def _process(self, inbound: Inbound) -> Exception | None:
        handler = self._handler_of(inbound)
        stale_runs = 0
        while stale_runs < MAX_STALE_RUNS:
            document = await self._states.open(inbound.session_id)
            if document.was_handled(inbound.key):
                self._report(inbound, ReceiptKind.OUTCOME)
                return None
            if inbound.packet.expires <= datetime.now(UTC):
                self._report(inbound, ReceiptKind.EXPIRED)
                return None
            # A handler that runs again emits the same packets with the same ids: the gate knows them.
            try:
                return await self._run(inbound, handler, document)
            except StateStale:
                self._states.forget(inbound.session_id)
                stale_runs += 1
            except EmitUnconfirmed as error:
                _log.warning("handler_runs_again", packet_id=str(inbound.packet.packet_id), reason=str(error))
        self._report(inbound, ReceiptKind.RETRY, error="another worker saved the state during each run")
        return None

    def _handler_of(self, inbound: Inbound) -> AnyHandler:
        handler = self._agent.substrate_handler if inbound.is_heard else self._agent.handler_for(inbound.packet)
        return handler or _default_handler(inbound.packet)

    async def _run(self, inbound: Inbound, handler: AnyHandler, document: StateDocument) -> Exception | None:
        invocation = self._invocation(inbound.packet, document, inbound.session_id, inbound.rights)
        self._report(inbound, ReceiptKind.DELIVERY_ACK, may_linger=True)
        began = perf_counter()
        try:
            return await self._invoke(inbound, handler, invocation)
        finally:
            time_handler(self._agent.agent_id, inbound.packet.packet_type, began)
            self._tell_invocation(inbound.packet, invocation)

    async def _invoke(self, inbound: Inbound, handler: AnyHandler, invocation: Invocation) -> Exception | None:
        try:
            packet = invocation.open(await self._claim_checks.redeem(inbound.packet))
            invocation.not_handled = await self._irrelevance(packet, invocation)
            result = None if invocation.not_handled else await handler(packet, HandlerContext(invocation))
            self._report(inbound, ReceiptKind.CONSUMER_APPLY, may_linger=True)
            await self._emit_results(packet, invocation, result)
            await self._states.save(invocation.document, inbound.key)
        except (StateStale, EmitUnconfirmed):
            invocation.undo()
            raise
        except Retry as retry:
            invocation.undo()
            self._report(inbound, ReceiptKind.RETRY, error=retry.reason, after=retry.after)
            return None
        except Reject as reject:
            invocation.undo()
            await self._reject(inbound, invocation, reject.reason)
            return None
        except asyncio.CancelledError:
            invocation.undo()
            if _is_cancelled():
                raise
            return await self._fail(inbound, invocation, AgentError("the handler was cancelled from within"))
        except Exception as failure:
            invocation.undo()
            return await self._fail(inbound, invocation, failure)
        self._report(inbound, ReceiptKind.OUTCOME, usage=invocation.usage, error=invocation.not_handled)
        return None

    async def _irrelevance(self, packet: Packet, invocation: Invocation) -> str | None:
        """Return why the handler does not take this packet; None when it does."""
        minimum = self._agent.min_relevance_for(packet)
        if minimum is None:
            return None

        snapshot = await invocation.snapshot.preview()
        relevance = self._agent.evaluate_relevance(context_message(message_of(packet)), snapshot)
        if relevance >= minimum:
            return None
        await invocation.snapshot.pass_over()
        _log.info("packet_not_relevant", packet_id=str(packet.packet_id), relevance=relevance, min_relevance=minimum)
        return f"not handled: relevance {relevance:.3f} is below {minimum:.3f}"

    async def _emit_results(self, packet: Packet, invocation: Invocation, result: Any) -> None:
        for payload in payloads_of(result):
            await invocation.emit(Draft(payload))
        if (
            packet.routing.requires_ack
            and not _is_for_all(packet)
            and not invocation.has_answered
            and packet.packet_type not in SILENT_TYPES
        ):
            await invocation.answer(AckPayload(acked_packet_id=packet.packet_id, ack_status=AckStatus.ACCEPTED))

    async def _reject(self, inbound: Inbound, invocation: Invocation, reason: str) -> None:
        packet = inbound.packet
        if packet.packet_type not in SILENT_TYPES and not inbound.is_heard and not invocation.has_answered:
            nack = NackPayload(
                acked_packet_id=packet.packet_id,
                ack_status=AckStatus.REJECTED,
                reason=reason[:MAX_ERROR_LENGTH],
            )
            await self._tell(invocation, nack)
        self._report(inbound, ReceiptKind.REJECT, error=reason)

    async def _fail(self, inbound: Inbound, invocation: Invocation, failure: Exception) -> Exception | None:
        """Another attempt while the handler has some left; then the end: an ERROR, and a dead letter."""
        packet = inbound.packet
        text = f"{type(failure).__name__}: {failure}"[:MAX_ERROR_LENGTH]
        may_mend_itself = not isinstance(failure, EffectError)  # an effect that is unknown waits for somebody's word
        has_retries = may_mend_itself and inbound.has_receipts and inbound.attempt <= self._agent.retries_for(packet)
        fail(failure)
        _log.error(
            "handler_failed",
            agent_id=self._agent.agent_id,
            packet_id=str(packet.packet_id),
            session_id=inbound.session_id,
            packet_type=packet.packet_type.value,
            is_tried_again=has_retries,
            exc_info=failure,
        )
        if has_retries:
            self._report(inbound, ReceiptKind.RETRY, error=text)
        else:
            count_end(self._agent.agent_id, packet.packet_type, FAILED)
            await self._tell_failure(inbound, invocation, text)
        if self._on_failure is not None:
            self._on_failure(packet, inbound.attempt, failure)
        return None if has_retries else DeadLetter(f"handler of {packet.packet_type} {packet.packet_id} failed: {text}")

    async def _tell_failure(self, inbound: Inbound, invocation: Invocation, text: str) -> None:
        packet = inbound.packet
        if packet.packet_type not in SILENT_TYPES and not inbound.is_heard:
            error = ErrorPayload(
                error_code="HANDLER_ERROR",
                message=text,
                retryable=False,
                details={"packet_id": str(packet.packet_id), "attempt": inbound.attempt},
            )
            await self._tell(invocation, error)

    async def _tell(self, invocation: Invocation, payload: Payload) -> None:
        """Tell the sender how its packet ended; a refusal of that does not change how it ended."""
        try:
            await invocation.answer(payload)
        except EmitUnconfirmed:
            raise
        except EmitError as refused:
            _log.warning("answer_refused", agent_id=self._agent.agent_id, reason=str(refused))

    def _tell_invocation(self, packet: Packet, invocation: Invocation) -> None:
        transitions = tuple(invocation.coordination.transitions)
        if transitions and self._on_invocation is not None:
            self._on_invocation(packet, transitions)

    def _report(
        self,
        inbound: Inbound,
        kind: ReceiptKind,
        *,
        usage: Usage | None = None,
        error: str | None = None,
        after: timedelta | None = None,
        may_linger: bool = False,
    ) -> None:
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

    def _invocation(
        self,
        packet: Packet | None,
        document: StateDocument,
        session_id: str,
        sender_rights: frozenset[Right] = frozenset(),
    ) -> Invocation:
        knowledge = self._sessions.of(session_id)
        coordination = LocalCoordination(self._machine)
        return Invocation(self._resources, packet, document, knowledge, coordination, sender_rights)


async def _accept(packet: Packet, context: HandlerContext) -> None:
    """Control types are taken by every agent: the SDK has learned from them already."""


async def _refuse(packet: Packet, context: HandlerContext) -> None:
    raise Reject(f"{context.agent.agent_id} has no handler for {packet.packet_type}")


def _is_for_all(packet: Packet) -> bool:
    """Return whether the packet stands in the substrate, where nobody answers for the others."""
    return packet.routing.delivery_mode is DeliveryMode.SUBSTRATE


def _default_handler(packet: Packet) -> AnyHandler:
    return _accept if packet.packet_type in CONTROL_TYPES else _refuse


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
