"""Has its sender sent too much: QUOTA_EXCEEDED, for what is no control type. The orchestrator goes free."""

from apc_contracts.admission.case import Case
from apc_contracts.judging.quotas import quota_of
from apc_contracts.judging.verdict import Refusal


def quota_is_left(case: Case) -> Refusal | None:
    """The sender's bucket holds a packet. What is refused draws none: who waits as told gets through."""
    wait_ms, rules = case.facts.quota_wait_ms, case.contract.limits.quota
    if wait_ms <= 0 or rules is None:
        return None
    quota = quota_of(rules, case.sender_id, case.packet.sender.role)
    message = (
        f"{case.sender_id} may send {quota.packets_per_second:g} packets a second, {quota.burst} at once: "
        f"send a new packet in {wait_ms} ms"
    )
    return Refusal("QUOTA_EXCEEDED", "quota_is_left", "sender.agent_id", message, wait_ms)
