"""`apc run`: find the best model of a table with a swarm of agents."""

from pathlib import Path
from typing import Annotated

import typer


def run(
    data: Annotated[Path | None, typer.Option(help="The table, a CSV with a header; default a sample.")] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    generations: Annotated[int, typer.Option(min=1, max=1000, help="Below 11 there are no transfers.")] = 24,
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Same seed and priors, same model.")] = 7,
    budget_seconds: Annotated[int, typer.Option(min=1, help="Wall time of the search.")] = 120,
    out: Annotated[Path | None, typer.Option(help="Where model and report go; default <data folder>/runs/RUN.")] = None,
    priors: Annotated[bool, typer.Option(help="Begin with what worked before on similar tables.")] = True,
) -> None:
    """Search for the best model of a table under the protocol; every packet is judged and logged.

    Ends with the promoted model, report.html and a summary; exit 3 when nothing passed the gate.
    """
    from apc_console.automl_run import RunForm, run_swarm
    from apc_console.running import run_quietly

    run_quietly(run_swarm(RunForm(data, target, generations, seed, budget_seconds, out, priors)))
