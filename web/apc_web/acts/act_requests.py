"""Requests for acts, and their answers."""

from uuid import UUID

from apc_contracts.payloads.questions import AnswerOutcome
from apc_contracts.vocabulary import Signal
from apc_contracts.wire.receipts import ReceiptKind
from apc_log.queries import DeliveryId
from apc_web.access.caller import caller
from apc_web.acts.operations import Acts
from apc_web.errors import ApiError, invalid
from apc_web.models.inbox import ActOutcome, AnswerRequest, SettleRequest, SignalRequest
from apc_web.reading.runs import place_of
from apc_web.route_services import Services

MOST_DELIVERIES = 500
"""Dead letters of one request."""
_KINDS = {"requeue": ReceiptKind.REQUEUE, "discard": ReceiptKind.DISCARD}
_OUTCOMES = {"approve": AnswerOutcome.APPROVED, "deny": AnswerOutcome.DENIED}
_SIGNALS = {"pause": Signal.PAUSE, "resume": Signal.RESUME, "stop": Signal.STOP}


async def settle(services: Services, act: str, request: SettleRequest) -> ActOutcome:
    """Requeue or discard dead letters. Raises ApiError, InputUnusable, ServiceAway."""
    acts = await _operating(services)
    if not 0 < len(request.deliveries) <= MOST_DELIVERIES:
        raise invalid("deliveries", f"deliveries: name 1 to {MOST_DELIVERIES}")
    deliveries = [DeliveryId(one.session_id, one.packet_id, one.recipient) for one in request.deliveries]
    result = await acts.settle(_KINDS[act], deliveries, request.note, caller().person)
    return ActOutcome(verdict=result.verdict, detail=result.detail)


async def signal(services: Services, session_id: str, act: str, request: SignalRequest) -> ActOutcome:
    """Pause, resume or stop a session. Raises ApiError, InputUnusable, ServiceAway."""
    acts = await _operating(services)
    await place_of(services.pool, session_id)
    result = await acts.signal(session_id, _SIGNALS[act], request.reason, caller().person)
    return ActOutcome(verdict=result.verdict, detail=result.detail)


async def answer(services: Services, packet_id: UUID, act: str, request: AnswerRequest) -> ActOutcome:
    """Approve or deny what an agent asks people. Raises ApiError, InputUnusable, ServiceAway."""
    person = caller().person
    if person is not None and request.person not in (None, person):
        raise ApiError(403, "NOT_YOU", f"you answer as {person}: leave person out", "person")
    result = await _acts(services).answer(packet_id, _OUTCOMES[act], request.note, person or request.person)
    return ActOutcome(verdict=result.verdict, detail=result.detail)


async def _operating(services: Services) -> Acts:
    """Return the acts of somebody who may operate. Raises ApiError (403) for everybody else."""
    acts = _acts(services)
    reason = await acts.why_not(caller().person)
    if reason is not None:
        raise ApiError(403, "NO_ACTS", reason)
    return acts


def _acts(services: Services) -> Acts:
    if services.acts is None:
        raise ApiError(403, "NO_ACTS", services.why_no_acts or "this server has no acts")
    return services.acts
