"""What an explanation of a session is made of: where it stands, what it waits for, what would move it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

MOST_DELIVERIES = 5
"""Deliveries of each kind that are named one by one."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that a session waits for."""

    what: str
    """`READY of swarm alpha`"""
    moves: str
    """What would end the wait, a whole sentence."""
    whom: tuple[str, ...] = ()
    """Each agent with what is known of it: `reviewer-2, which is registered but has no live worker since 12:04`."""
    until: datetime | None = None
    then: str = ""
    """What happens at `until`."""

    @property
    def sentence(self) -> str:
        """The wait as a sentence, without what would end it."""
        text = f"Waits for {self.what}"
        if self.whom:
            text += f": {'; '.join(self.whom)}"
        if self.until is not None:
            text += f"; deadline {clock(self.until)}"
            if self.then:
                text += f", then {self.then}"
        return f"{text}."


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a session stands, and everything that it waits for; the first wait is the one to look at first."""

    standing: str
    waits: tuple[Wait, ...] = ()
    remarks: tuple[str, ...] = field(default=())
    """What else matters: dead letters, retries, held packets."""


def clock(time: datetime) -> str:
    """Return date and time to the second, in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
