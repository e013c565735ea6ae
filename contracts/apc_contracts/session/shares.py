"""What a session's document says to its readers: the parts of its budget, and its agents."""

from dataclasses import dataclass
from datetime import datetime

from apc_contracts.payloads.budget_expression import RESOURCES
from apc_contracts.session.budgets import SESSION, left_of, parts, spent_of
from apc_contracts.session.document import SessionDocument


@dataclass(frozen=True, slots=True)
class BudgetShare:
    """What a task may spend of one resource; task '' is the session's own part, from which the others were cut."""

    task: str
    resource: str
    """packets, tokens, cost or wall_ms."""
    limit: float | None
    """None for wall_ms: the rest of the time is a deadline, which nobody spends."""
    spent: float | None
    left: float


@dataclass(frozen=True, slots=True)
class Membership:
    """An agent of a session."""

    agent_id: str
    swarm: str | None
    is_live: bool
    """A barrier waits for it."""


def budget_shares(document: SessionDocument, now: datetime) -> list[BudgetShare]:
    """Return a share for each task and each resource that its part names."""
    found = []
    for task in (SESSION, *sorted(document.task_budgets)):
        limits = document.budgets if task == SESSION else document.task_budgets[task].limits
        for name in RESOURCES:
            if name in limits and name != "wall_ms" and (left := left_of(document, task, name)) is not None:
                found.append(BudgetShare(task, name, limits[name], spent_of(document, task, name), left))
        time = parts(document, task, now).get("wall_ms")
        if time is not None and time.holder == task:
            found.append(BudgetShare(task, "wall_ms", None, None, int(time.left)))
    return found


def memberships(document: SessionDocument) -> list[Membership]:
    """Return the agents of the swarms, then the opener and the other members."""
    swarms = [(agent, swarm) for swarm, agents in document.swarms.items() for agent in agents]
    others = [(agent, None) for agent in dict.fromkeys((document.opener, *document.members))]
    return [
        Membership(agent, swarm, agent not in document.dead_agents and swarm not in document.dead_swarms)
        for agent, swarm in (*swarms, *others)
    ]
