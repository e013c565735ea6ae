"""What a contract leaves out of the checks that the packaged contract of its coordinator makes.

A deployment may do that: but who registers such a contract, and who reads a session of it, is told.
"""

from collections.abc import Iterator
from functools import lru_cache

from apc_contracts.contract.contract import Contract, load_contract, task_contract
from apc_contracts.contract.coordinators import Coordinator

_SESSION_MACHINE = "inter_agent_coordination"


@lru_cache(maxsize=256)
def omissions(contract: Contract) -> tuple[str, ...]:
    """Return a sentence for each kind of check that the contract leaves out; none for a packaged contract."""
    packaged = task_contract() if contract.coordinator is Coordinator.TASK else load_contract()
    return tuple(_omissions(contract, packaged))


def _omissions(contract: Contract, packaged: Contract) -> Iterator[str]:
    if not any(rule.guard.names for rule in contract.drift.enforced.rules):
        yield "No packet is refused for drift: no check in drift_checks is enforced."
    if packaged.promotion_gate.criteria and not any(guard.names for _, guard in contract.promotion_gate.criteria):
        yield "Whatever wins is promoted: no criterion in promotion_gate looks at the result."
    silent = sorted((_raised(packaged) & _awaited(contract)) - _raised(contract))
    if silent:
        yield f"Nothing raises {', '.join(silent)}: raised_by leaves the session where only its deadlines end it."


def _raised(contract: Contract) -> set[str]:
    return {event for events in contract.file.raised_by.values() for event in events}


def _awaited(contract: Contract) -> set[str]:
    return {edge.event for edge in contract.machine(_SESSION_MACHINE).edges}
