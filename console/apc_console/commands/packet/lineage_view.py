"""`apc packet lineage-summary`: how protocols spread and perform."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import asyncpg

from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable
from apc_console.output.cursors import read_cursor, write_cursor
from apc_console.output.output import print_json, print_rows
from apc_console.output.terminal import echo
from apc_contracts.contract.contract import load_contract
from apc_log.queries import AfterProtocol, LineageSummary, get_packet_lineage_summary, trace


async def print_lineage_summary(
    contract_file: Path | None,
    *,
    run_id: str | None,
    protocol_id: str | None,
    limit: int,
    after: str | None,
    as_json: bool,
) -> None:
    """Print the summary of transfers and arbitrations.

    Raises:
        ContractInvalid: the contract file.
        InputUnusable: a cursor of another command, an unknown run or protocol.
    """
    behind = None if after is None else AfterProtocol(*read_cursor(after, int, str))
    async with open_log() as pool:
        summary = await get_packet_lineage_summary(
            pool, load_contract(contract_file), run_id=run_id, protocol_id=protocol_id, limit=limit, after=behind
        )
        is_unknown = run_id is not None and not await _has_packets(pool, run_id)
    if protocol_id is not None and not summary.propagation:
        where = "the log" if run_id is None else f"run {run_id!r}"
        raise InputUnusable(f"--protocol-id: {where} holds no TRANSFER of protocol {protocol_id!r}")
    if is_unknown:
        raise InputUnusable(f"the log holds no packet of run_id {run_id}")
    cursor = None if summary.after is None else write_cursor(*summary.after)
    if as_json or not sys.stdout.isatty():
        print_json({**asdict(summary), "after": cursor})
        return
    _print(summary)
    if cursor is not None:
        echo(f"more protocols: --after {cursor}", file=sys.stderr)


def _print(summary: LineageSummary) -> None:
    parts: Sequence[tuple[str, Sequence[Any]]] = (
        ("protocols, by transfers that count", summary.protocols),
        ("transfer modes", summary.modes),
        ("outcome and drift of tasks against accepted transfers", summary.correlation),
        ("refused transfers", [{"code": code, "transfers": number} for code, number in summary.refusals.items()]),
        ("propagation: the latest transfers", summary.propagation),
        ("arbitrations: the latest", summary.arbitrations),
        ("decay decisions: the latest", summary.decay_decisions),
    )
    if not any(found for _, found in parts):
        echo("no TRANSFER, arbitration or decay decision: this summary covers nothing else (`apc packet trace` does)")
        return
    for title, found in parts:
        rows = [_short(row) for row in found]
        print_rows(rows, title=title, as_json=False, empty=f"{title}: none")


async def _has_packets(pool: asyncpg.Pool, run_id: str) -> bool:
    return bool((await trace(pool, run_id=run_id, limit=1, with_events=False)).packets)


_LEFT_OUT = frozenset({"shard", "seq", "parent_protocol_ids", "session_id"})


def _short(row: Any) -> dict[str, Any]:
    """Return the columns that fit into a table; JSON has all."""
    values = row if isinstance(row, Mapping) else asdict(row)
    return {name: value for name, value in values.items() if name not in _LEFT_OUT}
