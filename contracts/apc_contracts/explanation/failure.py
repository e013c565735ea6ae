"""A failure of a handler in words: what failed, on which packet, why, and what to do about it."""

import re
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from apc_contracts.text import numbered, one_line

LONGEST = 300
"""Characters of an exception's text in a sentence."""

_WHY = {
    "handler_error": "its handler failed",
    "delivery_limit": "its worker died with it too often",
    "retry_limit": "its handler asked for too many further attempts",
    "overflow": "its inbox was full",
    "no_route": "it has no inbox",
}
_UNDELIVERED = ("overflow", "no_route")


@dataclass(frozen=True, slots=True)
class LastGood:
    """The last delivery of a session that was handled before something failed."""

    packet_id: UUID
    packet_type: str
    recipient: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a recipient did not handle a packet."""

    session_id: str
    packet_id: UUID
    packet_type: str
    sender: str
    recipient: str
    reason: str
    """What the log says of the end of the delivery, such as handler_error; "" where it says nothing."""
    attempt: int = 1
    at: datetime | None = None
    exception: str | None = None
    """Type and text of what the handler raised last; None where the log does not say it, or in an encrypted body."""
    schema: str | None = None
    """Of typed data."""
    is_dead: bool = True
    """It is a dead letter now."""
    is_halted: bool = False
    """Its session has halted: work of it cannot be delivered again."""
    last_good: LastGood | None = None
    shard: int = 0
    seq: int = 0
    """Position of the packet in the log of its shard."""

    @property
    def exception_type(self) -> str | None:
        """The name of the exception's class, as far as it has one."""
        name, colon, _ = (self.exception or "").partition(":")
        return name if colon and name.replace(".", "").isidentifier() else None

    @property
    def handled(self) -> str:
        """What the handler takes: the schema of typed data, else the packet's type."""
        return self.schema or self.packet_type

    @property
    def why(self) -> str:
        """The exception, or what else ended the delivery."""
        if self.exception is not None:
            return one_line(self.exception)[:LONGEST]
        return why_dead(self.reason)

    @property
    def sentence(self) -> str:
        """What failed and why, in one sentence."""
        what = self.packet_type if self.schema is None else f"{self.packet_type} {self.schema}"
        named = f"{what} of {self.sender} (packet {self.packet_id})"
        if self.reason.startswith(_UNDELIVERED):
            return f"{named} did not reach {self.recipient}: {self.why.removesuffix('.')}."
        return (
            f"{self.recipient} could not handle {named} in {numbered(self.attempt, 'attempt')}: "
            f"{self.why.removesuffix('.')}."
        )

    @property
    def next_command(self) -> str:
        """The command that delivers it again, or that shows more where that is not possible."""
        if not self.is_dead:
            return f"apc packet trace --packet-id {self.packet_id}"
        return f"apc dead-letter {'show' if self.is_halted else 'requeue'} {self.packet_id}"

    @property
    def remedy(self) -> str:
        """What to do, in a sentence with that command."""
        if self.is_halted:
            return (
                "Work of a halted session cannot be delivered again: mend the cause, then start another session; "
                f"`{self.next_command}` shows every attempt."
            )
        if not self.is_dead:
            return f"`{self.next_command}` shows every attempt."
        return f"Mend the cause, then `{self.next_command}` delivers it again; `apc dead-letter discard` gives it up."


_HALTED_BY = re.compile(r"HANDLER_FAILED (.+) could not handle (\S+) ([0-9a-f-]{36})")


def halting_delivery(halt_reason: str | None) -> tuple[UUID, str] | None:
    """Return the packet that halted a session because its handler failed, and the recipient; None: it did not so."""
    found = _HALTED_BY.fullmatch(halt_reason or "")
    try:
        return None if found is None else (UUID(found[3]), found[1])
    except ValueError:
        return None


def why_dead(reason: str | None) -> str:
    """Return why a delivery is dead, as a clause."""
    text = reason or ""
    for beginning, words in _WHY.items():
        if text.startswith(beginning):
            rest = text[len(beginning) :].lstrip(" :")
            return f"{words}: {rest}" if rest else words
    return text or "the log does not say why"
