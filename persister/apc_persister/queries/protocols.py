"""How protocols do: the figures of contract.md 6 over the whole log or one run, and which are blocked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from apc_bus.protocol_evidence import read_decisions, read_scores, read_transfers, recall
from apc_contracts.contract import Contract
from apc_contracts.decay import DecayDecision, DecayScope, Subject
from apc_contracts.effectiveness import EvalTally, ProtocolTally, RunTask, compare, measure
from apc_contracts.protocol_ledger import ProtocolLedger


@dataclass(frozen=True, slots=True)
class ProtocolRow:
    """One protocol. Its figures count every TRANSFER of the log (or run), those before a recovery too.

    blocked_at and blocked_until are those of the block that covers it, which may be an ancestor's; None without one.
    A block that is over stands until a TRANSFER touches the protocol and its recovery is recorded.
    """

    protocol_id: str
    roots: tuple[str, ...]
    transfers: int
    accepted: int
    acceptance_rate: float
    average_outcome: float
    average_drift_risk: float
    effectiveness: float
    outcome_lift: float
    drift_delta: float
    blocked_at: datetime | None
    blocked_until: datetime | None
    blocked_by: str | None
    """`protocol:ID` or `cluster:ID`: whose figures led to the block."""


async def list_protocols(
    pool: asyncpg.Pool, contract: Contract, *, run_id: str | None = None, limit: int = 100
) -> list[ProtocolRow]:
    """The protocols with the most transfers first; with `run_id` those of a run, by the evidence of that run."""
    async with (
        pool.acquire() as connection,
        connection.transaction(isolation="repeatable_read", readonly=True),
    ):
        scores = await read_scores(connection)
        transfers = await read_transfers(connection)
        decisions = await read_decisions(connection)
    now_ledger, whole = ProtocolLedger(contract.effectiveness), ProtocolLedger(contract.effectiveness)
    for task, tally in scores.items():
        whole.recall_scores(task, tally)
    recall(now_ledger, [*transfers, *decisions])
    recall(whole, [event for event in transfers if run_id is None or event[1].task[0] == run_id])
    tallies = {
        subject.protocol_id: tally for subject, tally in whole.tallies().items() if subject.scope is DecayScope.PROTOCOL
    }
    most = sorted(tallies, key=lambda name: (-tallies[name].transfers, name))[:limit]
    blocks = _blocks_over(most, now_ledger)
    return [_row(name, tallies[name], now_ledger, scores, blocks.get(name), contract) for name in most]


def _blocks_over(names: Iterable[str], ledger: ProtocolLedger) -> dict[str, DecayDecision]:
    """The block over each of these that ends last."""
    found: dict[str, DecayDecision] = {}
    for block in sorted(ledger.blocks().values(), key=lambda block: block.blocked_until):
        covered = ledger.family(block.subject.protocol_id)
        found.update({name: block for name in names if name in covered})
    return found


def _row(
    name: str,
    tally: ProtocolTally,
    ledger: ProtocolLedger,
    scores: Mapping[RunTask, EvalTally],
    block: DecayDecision | None,
    contract: Contract,
) -> ProtocolRow:
    figures, lift = measure(tally, contract.effectiveness), compare(tally.tasks, scores)
    return ProtocolRow(
        protocol_id=name,
        roots=tuple(sorted(ledger.roots(name))),
        transfers=figures.transfers,
        accepted=figures.accepted,
        acceptance_rate=figures.acceptance_rate,
        average_outcome=figures.average_outcome,
        average_drift_risk=figures.average_drift_risk,
        effectiveness=figures.effectiveness,
        outcome_lift=lift.outcome_lift,
        drift_delta=lift.drift_delta,
        blocked_at=None if block is None else block.blocked_at,
        blocked_until=None if block is None else block.blocked_until,
        blocked_by=None if block is None else _named(block.subject),
    )


def _named(subject: Subject) -> str:
    return f"{subject.scope}:{subject.protocol_id}"
