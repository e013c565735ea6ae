"""`apc doctor`: check everything a deployment needs, and say how to fix what is wrong."""

import typer

from apc_console.output.output import AsJson, print_rows


def doctor(as_json: AsJson = False) -> None:
    """Check broker, topology, database, guard, clocks and log; exit 1 when something is wrong."""
    from apc_console.doctor import Status, examine
    from apc_console.system.running import run_quietly

    findings = run_quietly(examine())
    print_rows([finding.row() for finding in findings], title="Doctor", as_json=as_json, empty="nothing to look at")
    if any(finding.status is Status.WRONG for finding in findings):
        raise typer.Exit(1)
