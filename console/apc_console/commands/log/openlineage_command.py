"""`apc log openlineage`: export a run for tools that read OpenLineage."""

from pathlib import Path
from typing import Annotated

import typer


def openlineage(
    run_id: Annotated[str, typer.Option(help="The run.")],
    out: Annotated[Path | None, typer.Option(help="File of JSON lines; default: the standard output.")] = None,
    url: Annotated[str | None, typer.Option(help="Server to send to, such as http://localhost:5000.")] = None,
) -> None:
    """Write a run as OpenLineage events: agents are jobs, tasks their runs, artifacts the datasets."""
    from apc_console.commands.log.openlineage import export
    from apc_console.system.running import run_quietly

    run_quietly(export(run_id, out, url))
