"""`apc packet replay --verify` and `--what-if`: recompute a run, or judge it under another contract."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable, LogDiffers
from apc_console.output.files import read_bytes, write_bytes
from apc_console.output.output import print_json, print_rows, to_json
from apc_console.output.terminal import echo
from apc_contracts.contract.contract import load_contract
from apc_contracts.text import numbered
from apc_log.queries import BundleRecords, Replayed, read_recorded, verify_run


async def print_verified(
    run_id: str | None,
    bundle: Path | None,
    contract_files: Iterable[Path],
    what_if: Path | None,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    """Print the result of replaying a run from the database or from a bundle.

    Raises:
        InputUnusable: there is nothing of the run.
        BundleUnreadable: the file is no bundle.
        LogDiffers: the first entry that differs or cannot be recomputed.
    """
    contracts = [load_contract(), *map(load_contract, contract_files)]
    other = None if what_if is None else load_contract(what_if)
    if bundle is not None:
        held = BundleRecords(read_bytes(bundle).splitlines())
        run_id = run_id or held.run_id
        replayed = await verify_run(held, run_id, contracts, other)
    elif run_id is None:
        raise InputUnusable("name the run with --run-id, or its bundle with --bundle")
    else:
        async with open_log() as pool, read_recorded(pool) as records:
            replayed = await verify_run(records, run_id, contracts, other)
    if not replayed.sessions:
        raise InputUnusable(f"there is no session of run {run_id!r}")
    _show(replayed, out, is_what_if=other is not None, as_json=as_json)
    if replayed.problem is not None:
        raise LogDiffers(f"run {run_id}: {replayed.problem}")


def _show(replayed: Replayed, out: Path | None, *, is_what_if: bool, as_json: bool) -> None:
    if out is not None:
        write_bytes(out, to_json(_document(replayed)) + b"\n")
    elif as_json or not sys.stdout.isatty():
        print_json(_document(replayed))
    else:
        _print(replayed, is_what_if=is_what_if)


def _document(replayed: Replayed) -> dict[str, Any]:
    problem = replayed.problem
    return {
        "run_id": replayed.run_id,
        "is_verified": problem is None,
        "sessions": replayed.sessions,
        "packets": replayed.packets,
        "hops": replayed.hops,
        "transitions": replayed.transitions,
        "problem": None if problem is None else problem.document,
        "decisions": replayed.decisions,
        "changes": [_row(change) for change in replayed.changes],
    }


def _row(change: Any) -> dict[str, Any]:
    return {
        "entry": f"{change.shard}/{change.seq}",
        "what": change.what,
        "packet_id": change.packet_id,
        "was": change.was,
        "would_be": change.would_be,
    }


def _print(replayed: Replayed, *, is_what_if: bool) -> None:
    if replayed.problem is None:
        echo(
            f"run {replayed.run_id}: recomputed {numbered(replayed.packets, 'verdict')}, "
            f"{numbered(replayed.hops, 'hop')} and {numbered(replayed.transitions, 'transition')} "
            f"in {numbered(replayed.sessions, 'session')}; all as recorded"
        )
    if is_what_if:
        rows = [_row(change) for change in replayed.changes]
        print_rows(
            rows,
            title=f"{len(rows)} of {numbered(replayed.decisions, 'decision')} would have been different",
            as_json=False,
            empty=f"none of {numbered(replayed.decisions, 'decision')} would have been different",
        )
