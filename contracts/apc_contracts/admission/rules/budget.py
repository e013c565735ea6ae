"""Rules for BUDGET_EXHAUSTED and QUOTA_EXCEEDED: what a packet and a TASK_IR may cost, and a sender that is too fast.

The orchestrator is exempt; of the quota, control types too.
"""

from collections.abc import Mapping

from apc_contracts.admission.case import Case
from apc_contracts.judging.quotas import quota_of
from apc_contracts.judging.session_view import Part
from apc_contracts.judging.verdict import Refusal
from apc_contracts.payloads.budget_expression import budget_of
from apc_contracts.payloads.by_type import DecisionPayload, TaskIrPayload
from apc_contracts.vocabulary import CommitmentLevel, PacketType

_UNITS = {"packets": 1}
"""What one packet consumes on arrival; of the other resources something must be left."""


def budget_is_left(case: Case) -> Refusal | None:
    """Refuse a packet when nothing is left in the parts that its task draws from.

    Control types are free, or the end of a session could not be recorded; so is the DECISION DONE that releases a part.
    """
    session, packet = case.session, case.packet
    if session is None or _gives_back(case):
        return None
    parts = session.budget_parts(packet.trace.task_id, case.facts.now)
    for name, part in parts.items():
        if part.left <= 0 or part.left < _UNITS.get(name, 0):
            message = f"{name} of {_whose(part)} are spent ({_told(parts)}): {_remedy(part)}"
            path = "trace.task_id" if part.holder else "trace.session_id"
            return Refusal("BUDGET_EXHAUSTED", "budget_is_left", path, message)
    return None


def reservation_fits(case: Case) -> Refusal | None:
    """Refuse a TASK_IR on arrival that reserves more than is left after its own packet."""
    return _reservation_fits(case, {"packets": 1})


def held_reservation_fits(case: Case) -> Refusal | None:
    """Refuse a TASK_IR at RESUME that reserves more than is left; its own packet was charged on arrival."""
    return _reservation_fits(case, {})


def _reservation_fits(case: Case, taken: Mapping[str, int]) -> Refusal | None:
    session, packet = case.session, case.packet
    payload = packet.payload_as(TaskIrPayload)
    asked, task_id, now = budget_of(payload), payload.ir_header.task_id, case.facts.now
    if session is None or session.task_giver(task_id) is not None:
        return None
    parts = session.parts_to_cut(task_id, packet.trace.task_id, now)
    own = session.budget_parts(packet.trace.task_id, now) if taken else {}
    for name, amount in asked.items():
        part = parts.get(name)
        if part is None:
            continue
        left = part.left - (taken.get(name, 0) if own.get(name) == part else 0)
        if amount > left:
            message = f"task {task_id} asks for {name}={_amount(amount)} and {name}={_amount(max(0, left))} "
            message += f"are left in {_whose(part)}: ask for less"
            return Refusal("BUDGET_EXHAUSTED", "reservation_fits", "payload.objects", message)
    bound = case.contract.limits.task_budgets
    if session.task_budgets < bound:
        return None
    message = f"the session has {bound} tasks in its budget: end one with a DECISION DONE"
    return Refusal("BUDGET_EXHAUSTED", "reservation_fits", "payload.ir_header.task_id", message)


def _gives_back(case: Case) -> bool:
    packet, session = case.packet, case.session
    if session is None or packet.packet_type is not PacketType.DECISION:
        return False
    giver = session.task_giver(packet.trace.task_id)
    if giver is None or packet.payload_as(DecisionPayload).commitment_level is not CommitmentLevel.DONE:
        return False
    may_decide = case.sender is not None and case.contract.rights.moves_session in case.sender.rights
    return case.sender_id == giver or may_decide


def _whose(part: Part) -> str:
    return f"the budget of task {part.holder}" if part.holder else "the session's budget"


def _remedy(part: Part) -> str:
    if part.holder:
        return f"end task {part.holder} with a DECISION DONE, or work for another task"
    return "open a session with a larger one"


def _told(parts: dict[str, Part]) -> str:
    left = ", ".join(f"{name}={_amount(max(0, part.left))}" for name, part in parts.items())
    return f"left: {left}"


def _amount(amount: float) -> str:
    return f"{amount:.15g}"


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
