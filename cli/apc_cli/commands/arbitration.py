"""`apc arbitration list`: the arbitrations of the log as JSON or as tables of candidates."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from apc_cli.commands.group import Commands, whole_run_id, whole_session_id
from apc_cli.connections import open_log
from apc_cli.output.output import AsJson, print_json, print_table, show, wants_json
from apc_cli.output.safe_console import SafeConsole
from apc_cli.output.terminal import echo
from apc_log.queries import ArbitrationRow, list_arbitrations
from apc_log.queries.arbitrations import ArbitrationCandidate


def _print_tables(rows: Sequence[ArbitrationRow]) -> None:
    console = SafeConsole()
    for row in rows:
        place = f"round {row.round}, generation {row.generation} of session {row.session_id}"
        console.print(f"{show(row.judged_at)}  {place}", soft_wrap=True, markup=False, highlight=False)
        candidates = [
            {"candidate_id": one.candidate_id, "score": f"{one.total_score:.4f}", "outcome": _outcome(row, one)}
            for one in row.candidates
        ]
        print_table(console, candidates, f"arbitration {row.arbitration_id}")


def _outcome(row: ArbitrationRow, candidate: ArbitrationCandidate) -> str:
    if candidate.candidate_id == row.winner_candidate_id:
        return "winner"
    return ", ".join(candidate.refused_with) or (f"rank {candidate.rank}" if candidate.rank is not None else "")


# `apc arbitration`: the candidates that the orchestrator compared, and the winners.

app = Commands(help="Live arbitrations of transfers and of candidates.")


@app.command("list")
async def list_(
    run_id: Annotated[str | None, typer.Option(help="Only of this run.", parser=whole_run_id)] = None,
    session_id: Annotated[str | None, typer.Option(help="Only of this session.", parser=whole_session_id)] = None,
    task_id: Annotated[str | None, typer.Option(help="Only of this task.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many arbitrations.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print arbitrations, newest first: the winner, who was selected, and each candidate's score."""
    async with open_log() as pool:
        rows = await list_arbitrations(pool, run_id=run_id, session_id=session_id, task_id=task_id, limit=limit)
    if wants_json(as_json):
        print_json([asdict(row) for row in rows])
    elif rows:
        _print_tables(rows)
    else:
        echo("the log holds no such arbitration")
