"""`apc doctor`: look at everything that has to be right, and say how to mend what is not."""

import typer

from apc_console.output.output import AsJson, print_rows


def doctor(as_json: AsJson = False) -> None:
    """Look at broker, topology, database, guard, clocks and log; exit 1 when something is wrong."""
    from apc_console.doctor import Status, examine
    from apc_console.system.running import run_quietly

    findings = run_quietly(examine())
    print_rows([finding.row() for finding in findings], title="Doctor", as_json=as_json, empty="nothing to look at")
    if any(finding.status is Status.WRONG for finding in findings):
        raise typer.Exit(1)
