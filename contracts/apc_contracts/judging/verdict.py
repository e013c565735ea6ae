"""The gate's verdict on a packet."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec


class VerdictKind(StrEnum):
    """The outcome of judging one input."""

    ACCEPTED = "accepted"
    HELD = "held"
    """Logged now, judged later: a TRANSFER before its barrier, a packet of a paused session."""
    REFUSED = "refused"
    REPEAT = "repeat"
    """The same packet again: not judged twice."""
    RERUN = "rerun"
    """The same sender and cause with another payload: the first stands; recorded, no NACK."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a packet is refused: `code` from the contract's refusal order, `path` dotted with [i], `$` the whole."""

    code: str
    rule: str
    path: str
    message: str
    retry_after_ms: int | None = None

    @property
    def reason(self) -> str:
        """The NACK's reason: `CODE at PATH: message`."""
        return f"{self.code} at {self.path}: {self.message}"

    @property
    def document(self) -> dict[str, Any]:
        """Return the JSON form for the log and the NACK's metadata: {code, rule, path, message, retry_after_ms?}."""
        fields = {"code": self.code, "rule": self.rule, "path": self.path, "message": self.message}
        return fields if self.retry_after_ms is None else {**fields, "retry_after_ms": self.retry_after_ms}


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on a packet: a function of (bytes, facts, contract).

    `facts` holds the JSON values that the rules and guards read and that a replay cannot derive from the packet alone;
    `warnings` the anti-drift checks in mode `warn` that failed.
    """

    kind: VerdictKind
    refusal: Refusal | None = None
    warnings: tuple[Refusal, ...] = ()
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
