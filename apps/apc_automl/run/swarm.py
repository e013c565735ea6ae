"""Runs the swarm: in this process by default, over RabbitMQ with a process a role when a broker is given."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from apc_automl.errors import Interrupted, NothingPassed
from apc_automl.report.outcome import Outcome
from apc_automl.report.outcome_files import collect_outcome
from apc_automl.report.run_log import follow_run, read_run
from apc_automl.roles import MODULE, ROLES, make_agents
from apc_automl.run.form import RunForm, environment_of
from apc_automl.run.sizing import fit_to_budget, parallel_trainings
from apc_automl.run.status import RunStatus, go_on_command, print_summary, refusal_of, replay_command, show_run, wrapped
from apc_automl.settings import AutomlSettings
from apc_automl.swarm.priors import LoggedPast
from apc_automl.training.workbench import Workbench, check_table, prepare_table
from apc_bus.artifacts import ArtifactStore, open_artifacts
from apc_bus.concurrency import cancelled
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_cli.for_applications import (
    ConsoleBeside,
    System,
    check_console,
    console_beside,
    echo,
    has_broker,
    open_log,
    stop_on_signals,
)
from apc_contracts.errors import InputUnusable
from apc_log.queries import list_agent_packets

MOST_TRAINING_PROCESSES = 4


@dataclass(frozen=True, slots=True)
class Shown:
    """What `apc automl run` prints beside the files."""

    quiet: bool = False
    """Nothing but the summary."""
    as_json: bool = False
    """The summary as JSON."""
    ui: bool = False
    """Serve the web console while it runs, and until Ctrl-C."""


@dataclass(frozen=True, slots=True)
class _Plan:
    settings: AutomlSettings
    out: Path
    bus: BusSettings
    database: DatabaseSettings
    quiet: bool


async def run_swarm(form: RunForm, shown: Shown = Shown()) -> None:
    """Run to the end and print the summary.

    Raises:
        NothingPassed: the run ended without a promoted model.
        TableInvalid, InputUnusable: the table or an option cannot be used; nothing was started.
    """
    if shown.ui:
        check_console()
    async with console_beside() as console:
        outcome, form = await _run(form, shown, console)
        await console.stay(partial(print_summary, outcome, form, as_json=shown.as_json))
    _check_promoted(outcome)


async def _run(form: RunForm, shown: Shown, console: ConsoleBeside) -> tuple[Outcome, RunForm]:
    """Return the outcome, and the form with what a resumed run began with."""
    bus, database = BusSettings(), DatabaseSettings()
    has_broker(bus, database)
    if form.out is not None:
        _check_folder(form.out)
    settings = form.settings(bus.data_dir)
    plan = _Plan(settings, form.out or bus.data_dir / "runs" / settings.run_id, bus, database, shown.quiet)
    tell = _say_nothing if shown.quiet else _tell_on_stderr
    with _workbench() as workbench:
        if form.resume is not None:
            form, settings = await resumed(form, settings)
        settings, form = await _sized(settings, form, workbench, tell)
        plan = replace(plan, settings=settings)
        workbench.start_reader()
        async with _system(plan, workbench) as system:
            if shown.ui:
                await console.open("--run", settings.run_id)
            await _until_over(system, plan, form)
            outcome = await collect_outcome(system.pool, system.artifacts, settings.run_id, plan.out, workbench)
    return outcome, form


async def write_report(run_id: str, out: Path) -> None:
    """Make files and summary of a run from the log. Raises InputUnusable for a run without packets, NothingPassed."""
    _check_folder(out)
    bus = BusSettings()
    artifacts = open_artifacts(bus)
    with _workbench() as workbench:
        outcome = await _collected(run_id, out, artifacts, workbench)
    print_summary(outcome, None, as_json=False)
    _check_promoted(outcome)


async def _collected(run_id: str, out: Path, artifacts: ArtifactStore, workbench: Workbench) -> Outcome:
    async with open_log() as pool:
        if not await list_agent_packets(pool, run_id=run_id, limit=1):
            raise InputUnusable(f"the log holds no packet of run {run_id!r}")
        return await collect_outcome(pool, artifacts, run_id, out, workbench)


def _check_folder(out: Path) -> None:
    """Check that the results can be written there. Raises InputUnusable."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputUnusable(f"--out {out}: {error.strerror}: name a folder, or one that can be made") from error


def _check_promoted(outcome: Outcome) -> None:
    if not outcome.is_promoted:
        raise NothingPassed(refusal_of(outcome))


async def explain_table(form: RunForm) -> None:
    """Print what is made of each column of the table. Raises TableInvalid, InputUnusable."""
    with _workbench() as workbench:
        settings = form.settings(BusSettings().data_dir)
        await check_table(settings, workbench)
        profile = (await prepare_table(settings, workbench)).profile
    echo("\n".join(profile["notes"]), file=sys.stderr, flush=True)
    echo("\n".join(f"{name}: {how}" for name, how in profile["features"].items()))


async def _sized(
    settings: AutomlSettings, form: RunForm, workbench: Workbench, tell: Callable[[str], None]
) -> tuple[AutomlSettings, RunForm]:
    """Check the table as the librarian will, so that an unusable one is refused before anything starts; choose sizes.

    Returns:
        the settings and the form with these sizes.
    """
    await check_table(settings, workbench)
    preparing = asyncio.create_task(prepare_table(settings, workbench))
    await asyncio.sleep(0)  # The process that has read the table takes this first.
    workbench.start()
    prepared = await preparing
    how_read, *notes = prepared.profile["notes"]
    tell(how_read)
    if form.generations is not None:
        tell("\n".join(notes))
        return settings, form
    await workbench.started()
    fitted, sizes = await fit_to_budget(settings, form, prepared, workbench, parallel_trainings())
    if fitted.maximum_rows != settings.maximum_rows:
        notes = (await prepare_table(fitted, workbench)).profile["notes"][1:]
    tell("\n".join([*notes, sizes.words]))
    return fitted, replace(form, maximum_rows=fitted.maximum_rows)


def _tell_on_stderr(text: str) -> None:
    if text:
        echo("\n".join(wrapped(line, below=2) for line in text.splitlines()), file=sys.stderr, flush=True)


def _say_nothing(text: str) -> None:
    """Take what a quiet run does not say."""


@asynccontextmanager
async def _system(plan: _Plan, workbench: Workbench) -> AsyncIterator[System]:
    if has_broker(plan.bus, plan.database):
        from apc_cli.for_applications import AgentProcess, run_supervised

        environment = environment_of(plan.settings)
        roles = [AgentProcess(f"{MODULE}:{role}", environment) for role in ROLES]
        async with run_supervised(plan.bus, plan.database, roles, logs=plan.out / "logs") as supervised:
            yield supervised
    else:
        from apc_client.in_process import run_embedded

        async with run_embedded(plan.bus, plan.database) as embedded:
            await embedded.start_agents(make_agents(plan.settings, workbench, LoggedPast(embedded.database_url)))
            yield embedded


async def _until_over(system: System, plan: _Plan, form: RunForm) -> None:
    """Show the run until its session has ended; a service that fails, or a signal, ends it before."""
    run_id = plan.settings.run_id
    stop = stop_on_signals()
    status = RunStatus(plan.settings.generations, plan.settings.budget_seconds)
    showing = asyncio.create_task(show_run(follow_run(system.pool, run_id), status, quiet=plan.quiet))
    running = asyncio.create_task(system.run(stop))
    try:
        await asyncio.wait({showing, running}, return_when=asyncio.FIRST_COMPLETED)
        if not showing.done():
            await running
            raise Interrupted(
                f"interrupted; what was logged stays: {replay_command(run_id)}; go on: {go_on_command(run_id, form)}"
            )
        await showing
    finally:
        await cancelled(showing, running)


@contextmanager
def _workbench() -> Iterator[Workbench]:
    workbench = Workbench(min(os.cpu_count() or 1, MOST_TRAINING_PROCESSES))
    try:
        yield workbench
    finally:
        workbench.close()


async def resumed(form: RunForm, settings: AutomlSettings) -> tuple[RunForm, AutomlSettings]:
    """Return form and settings of a run that goes on from `form.resume`.

    Unless the user names a seed it is that of RUN, and the next one if RUN has judged a final model: its untouched
    rows have been looked at, so the table is split in another way.

    Raises:
        InputUnusable: the log does not know RUN, or RUN searched another table or another target.
    """
    async with open_log() as pool:
        log = await read_run(pool, form.resume or "")
    if not log.sizes:
        raise InputUnusable(f"--resume {form.resume}: the log holds no model search of this name; `apc session list`")
    if settings.task_id not in log.sizes["task_ids"]:
        raise InputUnusable(
            f"--resume {form.resume}: that run searched another table or another target; "
            "name the same ones with --data and --target"
        )
    if form.seed is None:
        form = replace(form, seed=log.seed + bool(log.validations))
    return form, settings.model_copy(update={"resume": log.run_id, "seed": form.used_seed})
