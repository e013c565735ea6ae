"""Run one check of the doctor: an error becomes a finding, and the other checks go on."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from apc_bus.database import DATABASE_AWAY
from apc_bus.errors import PoolerUnsuitable
from apc_bus.supervision import reason_of
from apc_console.doctor.finding import Finding, wrong
from apc_contracts.errors import ApcError

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
