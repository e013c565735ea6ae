"""Reasons that the store itself gives."""

from apc_agents.tasks.model import Task, TaskStatus


def not_succeeded(needed: Task) -> str:
    """Return why a task that depends on this one is cancelled."""
    how = "failed" if needed.status is TaskStatus.FAILED else "was cancelled"
    return f"it needs {needed.spec.action_id}, which {how}: {needed.error}"


def given_up(lost_leases: int) -> str:
    """Return why a task is not tried again."""
    return f"its worker died {lost_leases} times while it ran: it may be what kills it"
