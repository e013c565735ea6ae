"""What a pause does to the waits and timers of a session of the coordinator `task`."""

from datetime import timedelta
from uuid import UUID

from apc_contracts.session.document import Work

WAKE = "wake:"
"""How the kind of the deadline of an agent's timer begins."""


def timer_of(packet_id: UUID) -> str:
    """Return the kind of the deadline of a timer."""
    return f"{WAKE}{packet_id}"


def move_all(work: Work, stood_still: timedelta) -> frozenset[str]:
    """Move what a pause has held up; return the deadlines that it does not move: those of timers set by `at`."""
    for question in work.questions.values():
        question.due_at += stood_still
    for wake in work.wakes.values():
        if not wake.is_absolute:
            wake.due_at += stood_still
    return frozenset(timer_of(packet_id) for packet_id, wake in work.wakes.items() if wake.is_absolute)
