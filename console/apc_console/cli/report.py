"""`apc report`: the files and the summary of a run, made from the log."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    run_id: Annotated[str, typer.Option(help="The run.")],
    out: Annotated[Path, typer.Option(help="Where model and report go.")] = Path("out"),
) -> None:
    """Write model, report.html and summary of a run of the reference swarm again; exit 3 when nothing was promoted."""
    from apc_console.automl_run import write_report
    from apc_console.running import run_quietly

    run_quietly(write_report(run_id, out))
