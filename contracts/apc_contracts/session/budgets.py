"""The tree budget: the session's budget, and the parts of it that are reserved for tasks.

A TASK_IR with a BUDGET constraint cuts a part for its task out of the part of the task that it belongs to. A task draws
each resource from the nearest part that names it, its own or an ancestor's; the root is the session. What is reserved
is unavailable to everybody else until a DECISION DONE of the task returns what is unspent.

`packets`, `tokens` and `cost` are amounts. `wall_ms` is a deadline: time passes for all tasks at once, so nothing is
taken from the parent. Tokens and cost are known only after they are spent: what exceeds a part is drawn from the next
one up. Source: docs/specification/contract.md section 3.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil, fsum

from apc_contracts.contract.contract import Contract
from apc_contracts.contract.file import UsageCaps
from apc_contracts.judging.session_view import Part
from apc_contracts.packet import DecisionPacket, Packet
from apc_contracts.payloads.budget_expression import RESOURCES, budget_of
from apc_contracts.payloads.by_type import TaskIrPayload
from apc_contracts.session.document import SessionDocument, TaskBudget
from apc_contracts.vocabulary import ORCHESTRATOR, CommitmentLevel, PacketType

SESSION = ""
"""The holder of the root's part."""
_MILLISECOND = timedelta(milliseconds=1)


def parts(document: SessionDocument, task_id: str, now: datetime) -> dict[str, Part]:
    """Return resource -> what is left for the packets of a task, and in whose part; only limited resources."""
    left_by_resource: dict[str, Part] = {}
    if not document.budgets and not document.task_budgets:
        return left_by_resource
    for name in RESOURCES:
        holder = _holder(document, task_id, name)
        left = _time_left(document, holder, now) if name == "wall_ms" else left_of(document, holder, name)
        if left is not None:
            left_by_resource[name] = Part(holder, left)
    return left_by_resource


def parts_to_cut(document: SessionDocument, task_id: str, giver_task: str, now: datetime) -> dict[str, Part]:
    """Return `parts` for what a TASK_IR that belongs to `giver_task` can reserve for a task."""
    return parts(document, _parent_of(document, task_id, giver_task), now)


def left_of(document: SessionDocument, holder: str, name: str) -> float | None:
    """Return what is neither spent nor reserved of a part; None when it has no limit."""
    if holder != SESSION:
        part = document.task_budgets[holder]
        return part.limits[name] - part.spent.get(name, 0) - part.reserved.get(name, 0)
    budget = document.budgets.get(name)
    return None if budget is None else budget - spent_of(document, SESSION, name) - document.reserved.get(name, 0)


def spent_of(document: SessionDocument, holder: str, name: str) -> float:
    """Return what was drawn from a part itself: released parts included, live ones not."""
    if holder != SESSION:
        return document.task_budgets[holder].spent.get(name, 0)
    return document.spent.get(name, 0) - document.spent_in_parts.get(name, 0)


def draw(document: SessionDocument, task_id: str, name: str, amount: float) -> None:
    """Spend for a task. What exceeds its part is drawn from the next one up; the session takes the rest."""
    if not amount:
        return
    # Bounded: JSON has no infinity, and a document that cannot be read again would stop the shard.
    document.spent[name] = min(document.spent.get(name, 0) + amount, sys.float_info.max)
    holder = _holder(document, task_id, name)
    while holder != SESSION and amount > 0:
        part = document.task_budgets[holder]
        taken = min(amount, max(0, left_of(document, holder, name) or 0))
        part.spent[name] = part.spent.get(name, 0) + taken
        document.spent_in_parts[name] = document.spent_in_parts.get(name, 0) + taken
        amount -= taken
        holder = part.cut_from[name]


def believable(document: SessionDocument, task_id: str, name: str, amount: float, caps: UsageCaps | None) -> float:
    """Return how much of a reported amount of `tokens` or `cost` one delivery may draw."""
    if caps is None:
        return amount
    holder = _holder(document, task_id, name)
    most: float = caps.tokens if name == "tokens" else caps.cost
    if holder != SESSION:
        most = min(most, document.task_budgets[holder].limits[name])
    elif name in document.budgets:
        most = min(most, caps.share * document.budgets[name])
    return min(amount, ceil(most) if name == "tokens" else most)


def draw_packet(document: SessionDocument, packet: Packet) -> None:
    """Charge one packet for an agent's packet that is no control type."""
    draw(document, packet.trace.task_id, "packets", 1)


def note(document: SessionDocument, packet: Packet, rights: frozenset[str], now: datetime, contract: Contract) -> None:
    """Apply an accepted packet to the tree: a TASK_IR reserves, a DECISION DONE releases."""
    if packet.packet_type is PacketType.TASK_IR:
        _reserve(document, packet, now)
    elif releases(document, packet, rights, contract):
        release(document, packet.trace.task_id)


def releases(document: SessionDocument, packet: Packet, rights: frozenset[str], contract: Contract) -> bool:
    """Return whether this is the DECISION DONE that releases a part.

    It must come from the task's giver, from a sender with the right to decide, or from the orchestrator.
    """
    if packet.packet_type is not PacketType.DECISION:
        return False
    if not isinstance(packet, DecisionPacket) or packet.payload.commitment_level is not CommitmentLevel.DONE:
        return False
    part = document.task_budgets.get(packet.trace.task_id)
    sender = packet.sender.agent_id
    if part is None or not part.is_reserved:
        return False
    return sender in (part.giver, ORCHESTRATOR) or contract.rights.moves_session in rights


def release(document: SessionDocument, task_id: str) -> None:
    """Give unspent amounts back, those of subtasks too. Later spending of these tasks draws from the parts above."""
    _release(document, task_id)
    _count(document)


def _release(document: SessionDocument, task_id: str) -> None:
    tree = document.task_budgets
    part = tree[task_id]
    for child in [name for name, other in tree.items() if other.parent == task_id]:
        _release(document, child)
    for name, amount in part.spent.items():
        above = part.cut_from[name]
        if above != SESSION:
            tree[above].spent[name] = tree[above].spent.get(name, 0) + amount
    tree[task_id] = TaskBudget(part.parent)
    if part.parent == SESSION:
        for name in [name for name in tree if _is_below(document, name, task_id)]:
            del tree[name]


def stand_still(document: SessionDocument, pause: timedelta) -> None:
    """Extend the tasks' deadlines by a pause that is over."""
    for part in document.task_budgets.values():
        if part.wall_due is not None:
            part.wall_due += pause


def _reserve(document: SessionDocument, packet: Packet, now: datetime) -> None:
    """Cut the part of a new task; the first reservation of a task counts until it is released.

    A task without a budget is recorded where its parent has one, so that it draws from there.
    """
    payload = packet.payload_as(TaskIrPayload)
    tree, task_id, limits = document.task_budgets, payload.ir_header.task_id, budget_of(payload)
    part = tree.get(task_id)
    if part is not None and part.is_reserved:
        return
    parent = _parent_of(document, task_id, packet.trace.task_id)
    if part is None:
        if not limits and parent == SESSION:
            return
        part = tree[task_id] = TaskBudget(parent)
    if limits:
        part.giver, part.is_reserved = packet.sender.agent_id, True
        wall = limits.pop("wall_ms", None)
        part.limits = limits
        part.cut_from = {name: _holder(document, parent, name) for name in limits}
        part.wall_due = None if wall is None else _clock(document, now) + wall * _MILLISECOND
        _count(document)


def _parent_of(document: SessionDocument, task_id: str, giver_task: str) -> str:
    """Return the task out of whose part a task's part is cut: the one that its first TASK_IR belonged to."""
    part = document.task_budgets.get(task_id)
    if part is not None:
        return part.parent
    return giver_task if giver_task in document.task_budgets else SESSION


def _holder(document: SessionDocument, task_id: str, name: str) -> str:
    """Return the holder of the part that a task draws from."""
    tree = document.task_budgets
    part = tree.get(task_id)
    while part is not None:
        if name in part.limits or (name == "wall_ms" and part.wall_due is not None):
            return task_id
        task_id, part = part.parent, tree.get(part.parent)
    return SESSION


def _count(document: SessionDocument) -> None:
    """Recompute the sums that every packet needs.

    Recomputed with each change of the tree, so that rounding errors do not accumulate.
    """
    tree = document.task_budgets
    cut: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    drawn: defaultdict[str, list[float]] = defaultdict(list)
    for part in tree.values():
        part.reserved = {}
        for name, amount in part.limits.items():
            cut[part.cut_from[name], name].append(amount)
        for name, amount in part.spent.items():
            drawn[name].append(amount)
    document.reserved = {}
    for (holder, name), amounts in cut.items():
        reserved = document.reserved if holder == SESSION else tree[holder].reserved
        reserved[name] = fsum(amounts)
    document.spent_in_parts = {name: fsum(amounts) for name, amounts in drawn.items()}


def _time_left(document: SessionDocument, holder: str, now: datetime) -> float | None:
    due = document.deadlines.get("wall") if holder == SESSION else document.task_budgets[holder].wall_due
    return None if due is None else (due - _clock(document, now)) / _MILLISECOND


def _clock(document: SessionDocument, now: datetime) -> datetime:
    """Return the time for deadlines; in a paused session it stands still."""
    return document.paused_at or now


def _is_below(document: SessionDocument, task_id: str, top: str) -> bool:
    while task_id != SESSION:
        if task_id == top:
            return True
        part = document.task_budgets.get(task_id)
        task_id = SESSION if part is None else part.parent
    return False


# What a session's document says to its readers: the parts of its budget, and its agents.


@dataclass(frozen=True, slots=True)
class BudgetShare:
    """What a task may spend of one resource; task '' is the session's own part, from which the others were cut."""

    task: str
    resource: str
    """packets, tokens, cost or wall_ms."""
    limit: float | None
    """None for wall_ms: the rest of the time is a deadline, which nobody spends."""
    spent: float | None
    """What was charged: for tokens and cost at most what one delivery may report."""
    left: float
    refused: float = 0
    """Reported as spent beside `spent`, and not charged (`usage_refused` in the log)."""


@dataclass(frozen=True, slots=True)
class Membership:
    """An agent of a session."""

    agent_id: str
    swarm: str | None
    is_live: bool
    """A barrier waits for it."""


def budget_shares(
    document: SessionDocument, now: datetime, refused: Iterable[tuple[str, str, float]] = ()
) -> list[BudgetShare]:
    """Return a share for each task and each resource that its part names.

    `refused` is what was reported and not charged: task, resource, amount.
    """
    shares, uncharged = [], defaultdict[tuple[str, str], float](float)
    for task, name, amount in refused:
        uncharged[_holder(document, task, name), name] += amount
    for task in (SESSION, *sorted(document.task_budgets)):
        limits = document.budgets if task == SESSION else document.task_budgets[task].limits
        for name in RESOURCES:
            if name in limits and name != "wall_ms" and (left := left_of(document, task, name)) is not None:
                beside, spent = uncharged[task, name], spent_of(document, task, name)
                shares.append(BudgetShare(task, name, limits[name], spent, left, beside))
        time = parts(document, task, now).get("wall_ms")
        if time is not None and time.holder == task:
            shares.append(BudgetShare(task, "wall_ms", None, None, int(time.left)))
    return shares


def memberships(document: SessionDocument) -> list[Membership]:
    """Return the agents of the swarms, then the opener and the other members."""
    swarms = [(agent, swarm) for swarm, agents in document.swarms.items() for agent in agents]
    others = [(agent, None) for agent in dict.fromkeys((document.opener, *document.members))]
    return [
        Membership(agent, swarm, agent not in document.dead_agents and swarm not in document.dead_swarms)
        for agent, swarm in (*swarms, *others)
    ]
