"""`apc serve`: the services, one a process."""

import typer

app = typer.Typer(help="Run a service: the orchestrator or the persister.", no_args_is_help=True)


@app.command()
def orchestrator() -> None:
    """The gate: judges what comes in, logs it, delivers it. Several are hot standbys of each other."""
    from apc_console.running import run
    from apc_console.services import run_orchestrator

    run(run_orchestrator())


@app.command()
def persister() -> None:
    """The log writer: applies log batches to Postgres, one transaction each."""
    from apc_console.running import run
    from apc_console.services import run_persister

    run(run_persister())
