"""`apc bench`: experiments with the reference swarm."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from apc_console.output import AsJson, print_json, print_rows

app = typer.Typer(help="Experiments with the reference swarm: figures with 95 % intervals.", no_args_is_help=True)

Seeds = Annotated[int, typer.Option(min=2, help="How many seeds, each with a generated table of its own.")]
Table = Annotated[Literal["friedman", "clusters"], typer.Option(help="Which generator the tables come from.")]


@app.command()
def homogenization(
    seeds: Seeds = 5,
    generations: Annotated[int, typer.Option(min=13, help="Of each run.")] = 24,
    table: Table = "friedman",
    as_json: AsJson = False,
) -> None:
    """Compare outcome and diversity with the contract's transfer windows and with open ones."""
    from apc_agents.automl.generated import Generator
    from apc_console.bench.homogenization import measure_homogenization, tell_on_stderr
    from apc_console.running import run_quietly

    found = run_quietly(measure_homogenization(Generator(table), seeds, generations, tell_on_stderr))
    _print(found, "throttling on against off: means with 95 % intervals", as_json)


@app.command()
def priors(
    seeds: Seeds = 5,
    generations: Annotated[int, typer.Option(min=1, help="Of the first run.")] = 10,
    table: Table = "friedman",
    as_json: AsJson = False,
) -> None:
    """Compare how a second run on a similar table begins, with and without strategy priors."""
    from apc_agents.automl.generated import Generator
    from apc_console.bench.homogenization import tell_on_stderr
    from apc_console.bench.priors import measure_priors
    from apc_console.running import run_quietly

    found = run_quietly(measure_priors(Generator(table), seeds, generations, tell_on_stderr))
    _print(found, "strategy priors: means with 95 % intervals", as_json)


def _print(found: Mapping[str, Any], title: str, as_json: bool) -> None:
    if as_json or not sys.stdout.isatty():
        print_json(found)
        return
    rows = [{name: _cell(value) for name, value in row.items()} for row in found["summary"]]
    print_rows(rows, title=title, as_json=False, empty="nothing was measured")


def _cell(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return f"{value['mean']:.4f} [{value['low']:.4f}, {value['high']:.4f}]"
