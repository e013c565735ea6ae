"""What `apc doctor` says: one line a thing that it looked at, and how to mend what is wrong."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """Only `wrong` makes the command fail."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str
    status: Status
    finding: str
    fix: str = ""

    def row(self) -> dict[str, str]:
        """One line of the command's output."""
        return {"check": self.check, "status": self.status.value, "finding": self.finding, "fix": self.fix}


def ok(check: str, finding: str) -> Finding:
    """Nothing to do."""
    return Finding(check, Status.OK, finding)


def warning(check: str, finding: str, fix: str) -> Finding:
    """It works, and should be looked at."""
    return Finding(check, Status.WARNING, finding, fix)


def wrong(check: str, finding: str, fix: str) -> Finding:
    """It does not work, or does not hold what is promised."""
    return Finding(check, Status.WRONG, finding, fix)
