"""`apc automl`: the reference swarm from the command line. The entry point of group `apc.commands` names `app`."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from apc_cli.for_applications import AsJson, WithUi, echo, print_json, print_rows

app = typer.Typer(help="The reference swarm: find the best model of a table.", no_args_is_help=True)
bench = typer.Typer(help="Experiments with the reference swarm: figures with 95 % intervals.", no_args_is_help=True)
app.add_typer(bench, name="bench")

Seeds = Annotated[int, typer.Option(min=2, help="How many seeds, each with its own generated table.")]
Table = Annotated[Literal["friedman", "clusters"], typer.Option(help="Which generator the tables come from.")]

Separator = Annotated[str | None, typer.Option(help="Between the fields; default detected.")]
Decimal = Annotated[Literal[".", ","] | None, typer.Option(help="The decimal sign; default detected.")]
Encoding = Annotated[str | None, typer.Option(help="Such as utf-8 or latin-1; default detected.")]
Dates = Annotated[
    Literal["day-first", "month-first"] | None, typer.Option(help="What 03.04.2021 means; default detected.")
]
Group = Annotated[str | None, typer.Option(metavar="COLUMN", help="Rows with its same value stay together.")]
Time = Annotated[str | None, typer.Option(metavar="COLUMN", help="Judge on the latest rows by it; none: never.")]
Header = Annotated[bool | None, typer.Option("--header/--no-header", help="Whether the first line has names.")]

Seed = Annotated[int | None, typer.Option(min=0, max=2**31 - 1, help="Same seed and priors, same model; default 7.")]
Resume = Annotated[str | None, typer.Option(metavar="RUN", help="Go on from the best recipes of this run.")]
Budget = Annotated[
    int | None, typer.Option(min=1, help="Search time, then the best is judged. Default 120; 3600 with --generations.")
]
MaximumRows = Annotated[
    int | None, typer.Option(min=100, help="Rows the search looks at, at most; default what its time allows.")
]
Candidates = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=64,
        help="Methods a swarm tries in each generation; default what the time holds, 1 with --generations.",
    ),
]
ExplainData = Annotated[bool, typer.Option("--explain-data", help="Say what is made of each column; stop.")]


@app.command()
def run(
    data: Annotated[Path | None, typer.Option(help="The table: CSV, Excel or parquet; default a sample.")] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    generations: Annotated[
        int | None,
        typer.Option(
            min=1, max=1000, help="Default: as many as the budget holds, at most 24, or 100 with --budget-seconds."
        ),
    ] = None,
    candidates: Candidates = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, max=10, help="Validations at most; default 1, or 2 with much time.")
    ] = None,
    convergence: Annotated[
        int | None, typer.Option(min=0, max=1000, help="Last generations that only tune; default one in twelve.")
    ] = None,
    seed: Seed = None,
    budget_seconds: Budget = None,
    out: Annotated[Path | None, typer.Option(help="Where model and report go; default <data folder>/runs/RUN.")] = None,
    priors: Annotated[bool, typer.Option(help="Begin with what worked before on similar tables.")] = True,
    maximum_rows: MaximumRows = None,
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    header: Header = None,
    dates: Dates = None,
    group: Group = None,
    time: Time = None,
    resume: Resume = None,
    explain_data: ExplainData = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the summary alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON; progress stays on stderr.")] = False,
    ui: WithUi = False,
) -> None:
    """Search for the best model of a table under the protocol; every packet is judged and logged.

    Ends with the promoted model, report.html and a summary. When the gate refuses the best candidate, it is saved as
    candidate.skops with the reasons and the command that goes on from it; exit 3.
    """
    from apc_automl.run import RunForm, Shown, TableOptions, explain_table, run_swarm
    from apc_cli.for_applications import run_quietly

    source = TableOptions(separator, decimal, encoding, header, dates, group, time)
    sizes = (rounds, convergence, maximum_rows)
    form = RunForm(data, target, generations, seed, budget_seconds, out, priors, *sizes, source, resume, candidates)
    run_quietly(explain_table(form) if explain_data else run_swarm(form, Shown(quiet, as_json, ui)))


@app.command()
def report(
    run_id: Annotated[str, typer.Option(help="The run.")],
    out: Annotated[Path, typer.Option(help="Where model and report go.")] = Path("out"),
) -> None:
    """Write model, report.html and summary of a run again, from the log; exit 3 when nothing was promoted."""
    from apc_automl.run import write_report
    from apc_cli.for_applications import run_quietly

    run_quietly(write_report(run_id, out))


@app.command()
def predict(
    model: Annotated[Path, typer.Option(help="The folder with model.skops and model.json.")],
    data: Annotated[Path, typer.Option(help="New rows; the target is not needed.")],
    out: Annotated[Path, typer.Option(help="The CSV to write.")],
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
) -> None:
    """Predict new rows with the model of a run; the model is read in a confined process."""
    from apc_automl.data.table_schema import TableOptions
    from apc_automl.run.predict import predict_table

    rows, said = predict_table(model, data, out, TableOptions(separator, decimal, encoding))
    echo("\n".join(said), file=sys.stderr, flush=True)
    echo(f"{rows} rows predicted: {out}")


@app.command()
def verify(folder: Annotated[Path, typer.Argument(help="The folder with model.skops and model.json.")]) -> None:
    """Check that a model file is the one that the log promised; exit 4 when it is not."""
    from apc_automl.run.predict import verify_model
    from apc_cli.for_applications import run_quietly

    print_json(run_quietly(verify_model(folder)))


@bench.command()
def homogenization(
    seeds: Seeds = 5,
    generations: Annotated[int, typer.Option(min=13, help="Of each run.")] = 24,
    table: Table = "friedman",
    as_json: AsJson = False,
) -> None:
    """Compare outcome and diversity with the contract's transfer windows and with open ones."""
    from apc_automl.bench.experiments import measure_homogenization, tell_on_stderr
    from apc_automl.bench.reference_runs import Generator
    from apc_cli.for_applications import run_quietly

    found = run_quietly(measure_homogenization(Generator(table), seeds, generations, tell_on_stderr))
    _print(found, "throttling on against off: means with 95 % intervals", as_json)


@bench.command()
def priors(
    seeds: Seeds = 5,
    generations: Annotated[int, typer.Option(min=1, help="Of the first run.")] = 10,
    table: Table = "friedman",
    as_json: AsJson = False,
) -> None:
    """Compare how a second run on a similar table begins, with and without strategy priors."""
    from apc_automl.bench.experiments import measure_priors, tell_on_stderr
    from apc_automl.bench.reference_runs import Generator
    from apc_cli.for_applications import run_quietly

    found = run_quietly(measure_priors(Generator(table), seeds, generations, tell_on_stderr))
    _print(found, "strategy priors: means with 95 % intervals", as_json)


@bench.command()
def peers(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds for each table.")] = 5,
    first_seed: Annotated[int, typer.Option(min=1, max=1_000_000, help="The others follow it.")] = 1,
    seconds: Annotated[int, typer.Option(min=1, help="For each search.")] = 20,
    table: Annotated[
        list[str] | None, typer.Option(help="Compare on this table; repeat it. Default: all twelve.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Append each result here; what the file holds is not measured again.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the swarm with a random search of equal time and with HistGradientBoosting: mean ranks over tables.

    Tables come from scikit-learn, statsmodels, vega_datasets and palmerpenguins, two from generators. All twelve with
    five seeds take about an hour.
    """
    from apc_automl.bench.experiments import tell_on_stderr
    from apc_automl.bench.peers import PEER_TABLES, measure_peers
    from apc_cli.for_applications import run_quietly

    unknown = [name for name in table or () if name not in PEER_TABLES]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(PEER_TABLES)}", param_hint="--table")
    names, numbers = table or list(PEER_TABLES), range(first_seed, first_seed + seeds)
    found = run_quietly(measure_peers(names, numbers, seconds, tell_on_stderr, results))
    _print(found, "ranks (1 = smallest loss on untouched rows): means with 95 % intervals over the tables", as_json)


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
