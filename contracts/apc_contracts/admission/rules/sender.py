"""Rules for SENDER_MISMATCH, UNKNOWN_SENDER and BAD_SIGNATURE: who really sent the packet."""

from apc_contracts.admission.case import Case
from apc_contracts.judging.facts import SignatureState
from apc_contracts.judging.verdict import Refusal
from apc_contracts.vocabulary import ORCHESTRATOR


def no_copies(case: Case) -> Refusal | None:
    """Refuse the headers CC and BCC: they would route past the gate, because topic permissions do not check them.

    Source: docs/specification/architecture.md section 9.
    """
    if not case.facts.has_copy_headers:
        return None
    message = "the AMQP headers CC and BCC are not allowed: name every recipient in the packet"
    return Refusal("SENDER_MISMATCH", "no_copies", "$", message)


def sender_is_authentic(case: Case) -> Refusal | None:
    """Refuse a broker user_id other than the registered one, and agents that send in the orchestrator's name."""
    user_id, sender = case.facts.user_id, case.sender
    if case.is_from_orchestrator and case.facts.is_received:
        message = "the gate sends nothing through apc.ingress: name the agent that you are"
        return Refusal("SENDER_MISMATCH", "sender_is_authentic", "sender.agent_id", message)
    if sender is not None:
        if sender.speaks_as(user_id):
            return None
    elif user_id is not None and (not case.is_from_orchestrator or user_id == ORCHESTRATOR):
        return None
    if user_id is None:
        message = "the message has no user_id: set the AMQP property user_id to the broker user of the connection"
    else:
        message = f"{case.sender_id} does not send as broker user {user_id}: use the user it is registered with"
    return Refusal("SENDER_MISMATCH", "sender_is_authentic", "sender.agent_id", message)


def sender_is_known(case: Case) -> Refusal | None:
    """Refuse a sender that is not registered or was revoked."""
    sender = case.sender
    if sender is not None and not sender.is_revoked:
        return None
    if sender is None and case.is_from_orchestrator:
        return None
    state = "is not registered: register it" if sender is None else "was revoked: register it again"
    message = f"{case.sender_id} {state} with `apc agent add`"
    return Refusal("UNKNOWN_SENDER", "sender_is_known", "sender.agent_id", message)


def signature_is_good(case: Case) -> Refusal | None:
    """Refuse a signature that does not verify, and a missing one where policy requires it."""
    state = case.facts.signature
    if state is SignatureState.INVALID:
        message = "the header apc-signature does not verify: sign these bytes with a registered key"
    elif (
        state is SignatureState.ABSENT
        and case.packet.packet_type in case.contract.signature_required
        and not case.is_from_orchestrator
    ):
        message = f"{case.packet.packet_type} must be signed: set the header apc-signature"
    else:
        return None
    return Refusal("BAD_SIGNATURE", "signature_is_good", "$", message)
