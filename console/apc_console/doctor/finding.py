"""The findings of `apc doctor`: one line per check, and how to fix what is wrong."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """The status of a finding; only `wrong` makes the command fail."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    status: Status
    finding: str
    fix: str = ""

    def row(self) -> dict[str, str]:
        """Return one row of the command's output."""
        return {"check": self.check, "status": self.status.value, "finding": self.finding, "fix": self.fix}


def ok(check: str, finding: str) -> Finding:
    """Return a finding without anything to do."""
    return Finding(check, Status.OK, finding)


def warning(check: str, finding: str, fix: str) -> Finding:
    """Return a finding that works, but needs attention."""
    return Finding(check, Status.WARNING, finding, fix)


def wrong(check: str, finding: str, fix: str) -> Finding:
    """Return a finding that does not work, or breaks a promise."""
    return Finding(check, Status.WRONG, finding, fix)
