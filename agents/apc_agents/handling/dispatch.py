"""What becomes of one packet: handler, emissions, state, receipts, and the broker's answer."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any

from apc_agents.agent import Resources
from apc_agents.emission import LocalCoordination, LocalTransition
from apc_agents.emitter import ClaimChecks
from apc_agents.errors import AgentError, EmitUnconfirmed, Reject, Retry, StateStale
from apc_agents.handling.continuing import Continuation, Waits, diverged
from apc_agents.handling.delivery_end import SILENT_TYPES, DeliveryEnds, FailureListener
from apc_agents.handling.handler_context import HandlerContext
from apc_agents.handling.inquiry import with_answer
from apc_agents.handling.journal import CallJournal, Suspended
from apc_agents.handling.state import StateCache, StateDocument
from apc_agents.metrics import time_handler
from apc_agents.outbox import ReceiptOutbox
from apc_agents.running.delivery import Inbound, KnownSessions
from apc_agents.tool_effects import tools_act_for
from apc_agents.typed import AnyHandler, payloads_of
from apc_bus.concurrency import is_cancelled, unasked_cancel_fails
from apc_bus.crash_points import crash_point
from apc_bus.errors import GiveBack
from apc_bus.gen_ai import in_agent, messaging
from apc_bus.telemetry import SpanKind, begin_subject, describe, end_subject, get_logger, in_span
from apc_bus.topology import agent_queue
from apc_contracts.agent import INTRA_AGENT_MACHINE
from apc_contracts.contract.contract import Contract
from apc_contracts.packet import AckPacket, NackPacket, Packet, request_of
from apc_contracts.payloads.by_type import AckPayload, SignalPayload
from apc_contracts.vocabulary import CONTROL_TYPES, AckStatus, DeliveryMode, Right
from apc_contracts.wire.receipts import ReceiptKind

# The handlers of packets for which an agent has none.

_log = get_logger("apc_agents")


def default_handler(packet: Packet) -> AnyHandler:
    """Return what handles a packet for which the agent has no handler."""
    if request_of(packet) is not None:
        return _refuse
    return _accept if packet.packet_type in CONTROL_TYPES else _refuse


async def _accept(packet: Packet, context: HandlerContext) -> None:
    """Accept control types without a handler: the SDK has used them already."""
    payload = packet.payload
    if isinstance(payload, SignalPayload) and payload.wake is not None:
        _log.warning("wake_without_handler", agent_id=context.agent.agent_id, key=payload.wake.key)


async def _refuse(packet: Packet, context: HandlerContext) -> None:
    request = request_of(packet)
    what = packet.packet_type if request is None else f"requests of {request.schema_id}"
    raise Reject(f"{context.agent.agent_id} has no handler for {what}")


_NO_FAILURES = (Retry, Reject, StateStale, EmitUnconfirmed)
"""What a handler raises, or the SDK to let it run again."""
MAX_STALE_RUNS = 5
"""Runs of a handler whose state another worker saves meanwhile, before the orchestrator is asked to route it again."""

InvocationListener = Callable[[Packet, tuple[LocalTransition, ...]], None]
"""(packet, the steps of intra_agent_coordination); told of every run of a handler that emitted something."""


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
        self._waits = Waits(resources, states)
        self._ends = DeliveryEnds(resources.agent, outbox, on_failure)
        self._on_invocation = on_invocation
        agent_id = resources.agent.agent_id
        self._message = {
            is_urgent: messaging("process", "process", agent_queue(agent_id, is_urgent)) for is_urgent in (True, False)
        }

    async def process(self, inbound: Inbound) -> None:
        """Handle a packet; its delivery ends once everything reported about it is confirmed."""
        packet = inbound.packet
        subject = begin_subject(inbound.log_ids)
        try:
            message = self._message[inbound.is_urgent]
            with in_span("process", packet.packet_type, SpanKind.CONSUMER, inbound.trace, message):
                describe(packet)
                await self._process_within(inbound)
        finally:
            end_subject(subject)

    async def _process_within(self, inbound: Inbound) -> None:
        try:
            with unasked_cancel_fails():
                error = await self._process(inbound)
        except asyncio.CancelledError:
            self._outbox.settle(inbound.done, GiveBack("the worker stopped while its handler ran"))
            raise
        except Exception as failure:
            error = failure  # the adapter logs it and gives the packet back, up to its delivery limit
        self._outbox.settle(inbound.done, error)

    async def start(self, starter: AnyHandler, session_id: str) -> None:
        """Run an on_start function over the agent's own document."""
        for runs_left in reversed(range(MAX_STALE_RUNS)):
            document = await self._states.open(session_id, is_read=True)
            await starter(self._context(None, document, session_id))
            try:
                return await self._states.save(document, None)
            except StateStale:  # by another worker, or by an attempt of ours whose commit was not seen
                if not runs_left:
                    raise
                self._states.forget(session_id)

    async def _process(self, inbound: Inbound) -> Exception | None:
        stale_runs = 0
        while stale_runs < MAX_STALE_RUNS:
            document = await self._states.open(inbound.session_id)
            # A handler that runs again emits the same packets with the same ids: the gate knows them.
            try:
                if isinstance(inbound.packet, AckPacket | NackPacket):
                    # Before its delivery can end: a handler that waits for it may be in another process, or run again.
                    await self._states.save_answer(inbound.packet)
                    crash_point("worker.after_answer")
                if await self._is_repeated(inbound, document):
                    return None
                if inbound.packet.expires <= inbound.now():
                    self._ends.report(inbound, ReceiptKind.EXPIRED)
                    return None
                return await self._run(inbound, document)
            except StateStale:
                self._states.forget(inbound.session_id)
                stale_runs += 1
            except EmitUnconfirmed as error:
                _log.warning("handler_runs_again", packet_id=str(inbound.packet.packet_id), reason=str(error))
        self._ends.report(inbound, ReceiptKind.RETRY, error="another worker saved the state during each run")
        return None

    async def _is_repeated(self, inbound: Inbound, document: StateDocument) -> bool:
        """Report the end of a delivery that was handled before, by a worker that died; return whether it was."""
        try:
            if not await self._waits.repeat(inbound, document):
                return False
        except Retry as retry:
            self._ends.report(inbound, ReceiptKind.RETRY, error=retry.reason, after=retry.after)
        else:
            self._ends.report(inbound, ReceiptKind.OUTCOME)
        return True

    def _own_handler(self, inbound: Inbound, packet: Packet) -> AnyHandler | None:
        return self._agent.substrate_handler if inbound.is_heard else self._agent.handler_for(packet)

    def _at_work(self, inbound: Inbound, packet: Packet, *, is_fresh: bool) -> AbstractContextManager[None]:
        """Return the span of the agent, for a handler that it has: what the SDK takes by itself is no work.

        A handler that looks into a state that was not read is ended there, and runs again with it: that is one run.
        """
        if self._own_handler(inbound, packet) is None:
            return nullcontext()
        message = self._message[inbound.is_urgent]
        undone = () if is_fresh else (StateStale,)
        return in_agent(self._agent.agent_id, packet, inbound.trace, message, _NO_FAILURES, undone)

    async def _run(self, inbound: Inbound, document: StateDocument) -> Exception | None:
        self._ends.report(inbound, ReceiptKind.DELIVERY_ACK, may_linger=True)
        run = await self._waits.continuation(inbound, document)
        if isinstance(run, str):
            self._ends.report(inbound, ReceiptKind.CONSUMER_APPLY, may_linger=True)
            self._ends.report(inbound, ReceiptKind.OUTCOME, error=run)
            return None
        rights = inbound.rights if run.record is None else frozenset(map(Right, run.record.rights))
        context = self._context(run.packet, document, inbound.session_id, rights, run.journal)
        context.effect_log = self._ends.effect_log(inbound, run.packet)
        run.enter(context)
        began = perf_counter()
        try:
            return await self._invoke(inbound, run, context, is_fresh=document.is_fresh)
        finally:
            time_handler(self._agent.agent_id, inbound.packet.packet_type, began)
            self._tell_invocation(run.packet, context)

    async def _invoke(
        self, inbound: Inbound, run: Continuation, context: HandlerContext, *, is_fresh: bool
    ) -> Exception | None:
        try:
            packet = context.open(await self._claim_checks.redeem(run.packet))
            with self._at_work(inbound, packet, is_fresh=is_fresh):
                await self._handle(inbound, run, packet, context)
        except (StateStale, EmitUnconfirmed):
            context.undo()
            raise
        except Retry as retry:
            context.undo()
            if run.record is not None and not inbound.has_receipts:  # the gate's refusal never comes again
                return await self._ends.fail(inbound, context, retry)
            self._ends.report(inbound, ReceiptKind.RETRY, error=retry.reason, after=retry.after)
            return None
        except Reject as reject:
            context.undo()
            await self._ends.reject(inbound, context, reject.reason)
            await self._waits.finish(inbound, context, run)
            return None
        except Exception as failure:
            context.undo()
            return await self._ends.fail(inbound, context, failure)
        except BaseException as beyond:
            # A library may exit (argparse), and native code may panic: that ends the handler, and no other.
            context.undo()
            if isinstance(beyond, KeyboardInterrupt) or (isinstance(beyond, asyncio.CancelledError) and is_cancelled()):
                raise
            return await self._ends.fail(inbound, context, _failure(beyond))
        self._ends.report(inbound, ReceiptKind.OUTCOME, usage=context.usage, error=context.not_handled)
        return None

    async def _handle(self, inbound: Inbound, run: Continuation, packet: Packet, context: HandlerContext) -> None:
        """Run the handler to its end or to its next wait, whatever it catches."""
        journal = context.journal
        try:
            context.not_handled = None if run.record is not None else await self._irrelevance(packet, context)
            handler = self._own_handler(inbound, packet) or default_handler(packet)
            with tools_act_for(context):
                result = None if context.not_handled else await handler(packet, context)
        except BaseException as error:
            if not _is_left(journal, error):
                if isinstance(error, Exception) and not isinstance(error, Retry | Reject):
                    context.check_tools(error)
                raise
            result = None
        journal.finish()
        if (divergence := diverged(context)) is not None:
            raise divergence
        self._ends.report(inbound, ReceiptKind.CONSUMER_APPLY, may_linger=True)
        if journal.pending is not None:
            await self._waits.suspend(inbound, context, run)
            return
        context.check_tools()
        await self._emit_results(packet, context, result)
        await self._waits.finish(inbound, context, run)

    async def _irrelevance(self, packet: Packet, context: HandlerContext) -> str | None:
        """Return why the handler does not take this packet; None when it does."""
        minimum = self._agent.min_relevance_for(packet)
        if minimum is None:
            return None

        snapshot = await context.context_object.preview()
        relevance = self._agent.evaluate_relevance(context.context_object.heard(), snapshot)
        if relevance >= minimum:
            return None
        await context.context_object.pass_over()
        _log.info("packet_not_relevant", packet_id=str(packet.packet_id), relevance=relevance, min_relevance=minimum)
        return f"not handled: relevance {relevance:.3f} is below {minimum:.3f}"

    async def _emit_results(self, packet: Packet, context: HandlerContext, result: Any) -> None:
        returned = payloads_of(result)
        for payload in with_answer(packet, context.published, context.agent_id, returned):
            await context.emit(payload, metadata=context.result_metadata)
        if (
            packet.routing.requires_ack
            and not _is_for_all(packet)
            and not (context.has_answered or context.is_acknowledged)
            and packet.packet_type not in SILENT_TYPES
        ):
            await context.answer(AckPayload(acked_packet_id=packet.packet_id, ack_status=AckStatus.ACCEPTED))

    def _tell_invocation(self, packet: Packet, context: HandlerContext) -> None:
        transitions = tuple(context.coordination.transitions)
        if transitions and self._on_invocation is not None:
            self._on_invocation(packet, transitions)

    def _context(
        self,
        packet: Packet | None,
        document: StateDocument,
        session_id: str,
        rights: frozenset[Right] = frozenset(),
        journal: CallJournal | None = None,
    ) -> HandlerContext:
        knowledge = self._sessions.of(session_id)
        coordination = LocalCoordination(self._machine)
        return HandlerContext(self._resources, packet, document, knowledge, coordination, rights, journal)


def _failure(beyond: BaseException) -> AgentError:
    what = "was cancelled from within" if isinstance(beyond, asyncio.CancelledError) else f"raised {beyond!r}"
    failure = AgentError(f"the handler {what}")
    failure.__cause__ = beyond
    return failure


def _is_for_all(packet: Packet) -> bool:
    """Return whether the packet stands in the substrate, where nobody answers for the others."""
    return packet.routing.delivery_mode is DeliveryMode.SUBSTRATE


def _is_left(journal: CallJournal, error: BaseException) -> bool:
    """Return whether a handler was left because its run is over, whatever its task groups made of that."""
    if isinstance(error, BaseExceptionGroup):
        return journal.is_over and all(_is_left(journal, one) for one in error.exceptions)
    return isinstance(error, Suspended) or (journal.is_over and isinstance(error, Exception))
