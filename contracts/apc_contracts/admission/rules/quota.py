"""The rule for QUOTA_EXCEEDED: a sender that is too fast. Control types and the orchestrator are exempt."""

from apc_contracts.admission.case import Case
from apc_contracts.judging.quotas import quota_of
from apc_contracts.judging.verdict import Refusal


def quota_is_left(case: Case) -> Refusal | None:
    """Refuse a packet when the sender's bucket is empty.

    A refused packet draws no token: a sender that waits as told gets through.
    """
    wait_ms, rules = case.facts.quota_wait_ms, case.contract.limits.quota
    if wait_ms <= 0 or rules is None:
        return None
    quota = quota_of(rules, case.sender_id, case.packet.sender.role)
    message = (
        f"{case.sender_id} may send {quota.packets_per_second:g} packets a second, {quota.burst} at once: "
        f"send a new packet in {wait_ms} ms"
    )
    return Refusal("QUOTA_EXCEEDED", "quota_is_left", "sender.agent_id", message, wait_ms)
