"""How protocols do and which are blocked: their figures beside the account that the gate keeps."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import asyncpg

from apc_contracts.contract.contract import Contract
from apc_contracts.protocol.decay import DecayDecision
from apc_contracts.protocol.ledger import ProtocolLedger
from apc_log.protocol_evidence import read_ledger
from apc_log.queries.lineage.summary import ProtocolEffectiveness, get_protocol_effectiveness


@dataclass(frozen=True, slots=True)
class ProtocolRow:
    """One protocol. Its figures count every TRANSFER of the log (or run), those before a recovery too.

    blocked_at and blocked_until are those of the block that covers it, which may be an ancestor's; None without one.
    A block that is over stands until a TRANSFER touches the protocol and its recovery is recorded.
    """

    figures: ProtocolEffectiveness
    roots: tuple[str, ...]
    blocked_at: datetime | None
    blocked_until: datetime | None
    blocked_by: str | None
    """`protocol:ID` or `cluster:ID`: whose figures led to the block."""


async def list_protocols(
    pool: asyncpg.Pool, contract: Contract, *, run_id: str | None = None, limit: int = 100
) -> list[ProtocolRow]:
    """Return the protocols with the most transfers first; with `run_id` those of a run, by the evidence of that run."""
    ledger = ProtocolLedger(contract.effectiveness)
    await read_ledger(pool, ledger)
    found = await get_protocol_effectiveness(pool, contract, run_id=run_id, limit=limit)
    blocks = _blocks_over([figures.protocol_id for figures in found], ledger)
    return [_row(figures, ledger, blocks.get(figures.protocol_id)) for figures in found]


def _blocks_over(names: Iterable[str], ledger: ProtocolLedger) -> dict[str, DecayDecision]:
    """Return the block over each of these that ends last."""
    found: dict[str, DecayDecision] = {}
    for block in sorted(ledger.blocks().values(), key=lambda block: block.blocked_until):
        covered = ledger.family(block.subject.protocol_id)
        found.update({name: block for name in names if name in covered})
    return found


def _row(figures: ProtocolEffectiveness, ledger: ProtocolLedger, block: DecayDecision | None) -> ProtocolRow:
    roots = tuple(sorted(ledger.roots(figures.protocol_id)))
    if block is None:
        return ProtocolRow(figures, roots, None, None, None)
    by = f"{block.subject.scope}:{block.subject.protocol_id}"
    return ProtocolRow(figures, roots, block.blocked_at, block.blocked_until, by)
