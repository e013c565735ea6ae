"""The findings of `apc doctor`: one line per check, and how to fix what is wrong."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from apc_bus.concurrency import reason_of
from apc_bus.database import DATABASE_AWAY
from apc_bus.errors import PoolerUnsuitable
from apc_contracts.errors import ApcError


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


# Run one check of the doctor: an error becomes a finding, and the other checks go on.

LONGEST_SECONDS = 60.0
"""Seconds for one check; an unresponsive server must not keep the operator waiting."""
DATABASE_FIX = "look into the database's own log"
FAULT_FIX = "this look has its own fault: report it with this line; `apc doctor` has made the others"

Found = TypeVar("Found")


async def attempt(check: str, look: Awaitable[Found], findings: list[Finding], fix: str = "") -> Found | None:
    """Return the result of a check; None when it fails, and then `findings` get the reason.

    Args:
        fix: the fix for an error of a known type; none = the error message says it.
    """
    try:
        async with asyncio.timeout(LONGEST_SECONDS):
            return await look
    except PoolerUnsuitable as error:
        findings.append(wrong(check, error.fault, error.remedy))
    except ApcError as error:
        findings.append(wrong(check, reason_of(error), fix or "mend what it names"))
    except TimeoutError:
        findings.append(wrong(check, f"no answer within {LONGEST_SECONDS:g} s", "see whether the server is overloaded"))
    except DATABASE_AWAY as error:
        findings.append(wrong(check, f"it failed: {reason_of(error)}", DATABASE_FIX))
    except Exception as error:
        findings.append(wrong(check, f"{type(error).__name__}: {reason_of(error)}", FAULT_FIX))
    return None


async def look(check: str, looking: Awaitable[list[Finding]], fix: str = "") -> list[Finding]:
    """Return the findings of a check, or the one that says why it cannot be made."""
    failed: list[Finding] = []
    return await attempt(check, looking, failed, fix) or failed
