"""`apc arbitration list`: the arbitrations of the log as JSON or as a table."""

import sys
from collections.abc import Sequence
from dataclasses import asdict

from apc_console.connections.database import open_log
from apc_console.output.output import print_json
from apc_console.output.terminal import echo
from apc_log.queries import ArbitrationRow, list_arbitrations


async def print_arbitrations(
    *, run_id: str | None, session_id: str | None, task_id: str | None, limit: int, as_json: bool
) -> None:
    """Print at most `limit` arbitrations, newest first."""
    async with open_log() as pool:
        rows = await list_arbitrations(pool, run_id=run_id, session_id=session_id, task_id=task_id, limit=limit)
    if as_json or not sys.stdout.isatty():
        print_json([asdict(row) for row in rows])
    elif rows:
        _print_table(rows)
    else:
        echo("the log holds no such arbitration")


def _print_table(rows: Sequence[ArbitrationRow]) -> None:
    from rich.table import Table

    from apc_console.output.safe_console import SafeConsole

    table = Table(box=None, header_style="bold", expand=True)
    for name in ("judged at", "session", "place", "candidate", "score", "outcome"):
        table.add_column(name, overflow="fold")
    for row in rows:
        place = f"r{row.round} g{row.generation}"
        table.add_row(f"{row.judged_at:%H:%M:%S}", row.session_id, place, row.arbitration_id, "", "", style="bold")
        for one in row.candidates:
            outcome = ", ".join(one.refused_with) or (f"rank {one.rank}" if one.rank is not None else "")
            if one.candidate_id == row.winner_candidate_id:
                outcome = "winner"
            table.add_row("", "", "", one.candidate_id, f"{one.total_score:.4f}", outcome)
    SafeConsole().print(table)
