"""`apc automl bench peers`: is the swarm as good as a random search of equal time, and as plain gradient boosting?"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from apc_automl.bench import outsiders
from apc_automl.bench.reference_runs import (
    PROCESSES,
    TARGET,
    VETO_WINDOW_MS,
    Generator,
    Interval,
    bench_folder,
    run_swarm_once,
    training_processes,
    write_samples,
)
from apc_automl.run.form import RunForm
from apc_automl.run.sizing import fit_to_budget
from apc_automl.settings import AutomlSettings
from apc_automl.training import work
from apc_automl.training.gates import DIGITS
from apc_automl.training.material import Blob, Prepared, Study
from apc_automl.training.workbench import Workbench, prepare_table
from apc_contracts.errors import InputUnusable

Result = TypeVar("Result")

ROWS = 1000
"""Of each generated table."""
PACKAGES = ("statsmodels", "vega_datasets", "palmerpenguins")


@dataclass(frozen=True, slots=True)
class PeerTable:
    """A table, the package that carries it, and the file in it; without a file it is made by a function."""

    name: str
    target: str
    package: str = ""
    file: str = ""
    make: Callable[[], Any] | None = None

    def write(self, folder: Path, seed: int) -> Path:
        """Write the table as CSV. Raises InputUnusable when the package is not installed."""
        path = folder / f"{self.name}-{seed}.csv"
        if not path.exists():
            if self.package:
                self._frame().to_csv(path, index=False, lineterminator="\n")
            elif self.make is not None:
                self.make().to_csv(path, index=False, lineterminator="\n")
            else:
                [path] = write_samples(folder, Generator(self.name), seed, 1, ROWS)
        return path

    def _frame(self) -> Any:
        """Read the file without running the package: some of them load old libraries."""
        import pandas as pd

        found = find_spec(self.package)
        if found is None or not found.submodule_search_locations:
            raise InputUnusable(f"table {self.name!r}: pip install {' '.join(PACKAGES)}; or name others with --table")
        path = Path(found.submodule_search_locations[0]) / self.file
        return pd.read_json(path) if path.suffix == ".json" else pd.read_csv(path)


def _carried(name: str) -> Callable[[], Any]:
    def load() -> Any:
        from sklearn import datasets

        bunch = getattr(datasets, f"load_{name}")(as_frame=True)
        names = getattr(bunch, "target_names", None)
        labels = bunch.target if names is None or name == "digits" else bunch.target.map(dict(enumerate(names)))
        return bunch.data.assign(**{TARGET: labels})

    return load


PEER_TABLES = {
    table.name: table
    for table in (
        PeerTable("breast_cancer", TARGET, make=_carried("breast_cancer")),
        PeerTable("wine", TARGET, make=_carried("wine")),
        PeerTable("digits", TARGET, make=_carried("digits")),
        PeerTable("diabetes", TARGET, make=_carried("diabetes")),
        PeerTable("marriages", "rate_marriage", "statsmodels", "datasets/fair/fair.csv"),
        PeerTable("travel", "choice", "statsmodels", "datasets/modechoice/modechoice.csv"),
        PeerTable("doctor_visits", "mdvis", "statsmodels", "datasets/randhie/randhie.csv"),
        PeerTable("cars", "Miles_per_Gallon", "vega_datasets", "_data/cars.json"),
        PeerTable("weather", "weather", "vega_datasets", "_data/seattle-weather.csv"),
        PeerTable("penguins", "species", "palmerpenguins", "data/penguins.csv"),
        PeerTable("friedman", TARGET),
        PeerTable("clusters", TARGET),
    )
}


class Comparison(BaseModel):
    """The losses of all three on the same untouched rows of one table and seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    table: str
    seed: int
    seconds: int
    """For each search."""
    losses: Mapping[str, float]
    generations: int
    candidates: int
    """Methods that each swarm has compared in a generation."""
    drawn: int
    """Recipes that the random search has tried."""

    @property
    def ranks(self) -> dict[str, float]:
        """Return 1 for the smallest loss; equal ones share their places, in as many digits as a run logs."""
        from scipy.stats import rankdata

        losses = [round(loss, DIGITS) for loss in self.losses.values()]
        return dict(zip(self.losses, rankdata(losses).tolist(), strict=True))


class FinishedComparisons:
    """The comparisons in a file; without a file none is kept."""

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def read(self, seconds: int) -> dict[tuple[str, int], Comparison]:
        """Return (table, seed) -> its comparison with searches of so many seconds.

        Raises:
            InputUnusable: a line is no comparison, or the file cannot be read.
        """
        if self._file is None or not self._file.exists():
            return {}
        found, number = {}, 0
        try:
            for line in self._file.read_text(encoding="utf-8").splitlines():
                number += 1
                one = Comparison.model_validate_json(line)
                if one.seconds == seconds:
                    found[one.table, one.seed] = one
        except (OSError, UnicodeDecodeError) as error:
            raise InputUnusable(f"--results {self._file}: {error}") from error
        except ValidationError as error:
            raise InputUnusable(f"--results {self._file}, line {number}: this is no comparison") from error
        return found

    def add(self, one: Comparison) -> None:
        """Append a comparison. Raises InputUnusable when the file cannot be written."""
        if self._file is None:
            return
        try:
            with self._file.open("a", encoding="utf-8") as lines:
                lines.write(one.model_dump_json() + "\n")
        except OSError as error:
            raise InputUnusable(f"--results {self._file}: {error.strerror}") from error


SWARM, RANDOM, PLAIN = "the swarm", "random search", "HistGradientBoosting"
PEERS = (SWARM, RANDOM, PLAIN)
WARM_UP_SECONDS = 2.0


async def measure_peers(
    tables: Sequence[str], seeds: Sequence[int], seconds: int, tell: Callable[[str], None], results: Path | None = None
) -> dict[str, Any]:
    """Compare over tables and seeds: a JSON object with the losses, and mean ranks with 95 % intervals.

    The intervals are over the tables: the seeds of a table are no independent tables.

    Args:
        results: a file to which each comparison is appended; what it holds already is not measured again.

    Raises:
        InputUnusable: the package that carries a table is not installed, or the file cannot be used.
    """
    kept = FinishedComparisons(results)
    known, found = kept.read(seconds), list[Comparison]()
    with bench_folder() as folder, training_processes() as workbench:
        for seed in seeds:
            for table in [PEER_TABLES[name] for name in tables]:
                one = known.get((table.name, seed))
                if one is None:
                    one = await _compare(table, seed, seconds, folder, workbench)
                    kept.add(one)
                found.append(one)
                tell(f"{one.table}, seed {seed}: " + ", ".join(f"{name} {one.losses[name]:.4f}" for name in PEERS))
    return {
        "seconds": seconds,
        "seeds": list(seeds),
        "tables": list(tables),
        "runs": [one.model_dump() | {"ranks": one.ranks} for one in found],
        "summary": summarise(found),
    }


def summarise(found: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return the mean rank of each peer, and how far the swarm lies behind the others, over the tables."""
    tables = list(dict.fromkeys(one.table for one in found))

    def over_tables(figure: Callable[[Comparison], float]) -> dict[str, Any]:
        return asdict(Interval.of([fmean(figure(one) for one in found if one.table == table) for table in tables]))

    def behind(peer: str) -> Callable[[Comparison], float]:
        return lambda one: one.ranks[SWARM] - one.ranks[peer]

    ranks = [{"figure": f"mean rank, {name}", "value": over_tables(_rank_of(name))} for name in PEERS]
    return [*ranks, *({"figure": f"{SWARM} behind {name}", "value": over_tables(behind(name))} for name in PEERS[1:])]


def _rank_of(name: str) -> Callable[[Comparison], float]:
    return lambda one: one.ranks[name]


async def _compare(table: PeerTable, seed: int, seconds: int, folder: Path, workbench: Workbench) -> Comparison:
    path = await asyncio.to_thread(table.write, folder, seed)
    form = RunForm(path, table.target, seed=seed, budget_seconds=seconds, rounds=1, priors=False)
    run_id = f"{table.name}-{seed}"
    settings = AutomlSettings(
        data=path,
        target=table.target,
        seed=seed,
        budget_seconds=seconds,
        maximum_rounds=1,
        maximum_rows=form.row_limit,
        veto_window_ms=VETO_WINDOW_MS,
        session_id=run_id,
        run_id=run_id,
        priors=False,
    )
    prepared = await prepare_table(settings, workbench)
    await _warm_up(_study(prepared, seed), workbench)
    fitted, _ = await fit_to_budget(settings, form, prepared, workbench, PROCESSES)
    prepared = prepared if fitted.maximum_rows == settings.maximum_rows else await prepare_table(fitted, workbench)
    study, untouched = _study(prepared, seed), Blob.of(prepared.untouched[0])
    run = await run_swarm_once(folder / run_id, fitted, workbench)
    loss = run.validated_loss
    if loss is None:
        loss = await _run(workbench, outsiders.judge_baseline, study, untouched)
    searches = [_run(workbench, outsiders.search_at_random, study, float(seconds), seed + one) for one in (0, 10_000)]
    drawn = [one for one in await asyncio.gather(*searches) if one is not None]
    best = min(drawn, key=lambda one: one.loss, default=None)
    chance = (
        await _run(workbench, outsiders.judge_baseline, study, untouched)
        if best is None
        else await _run(workbench, outsiders.judge_recipe, best.recipe, study, untouched)
    )
    plain = await _run(workbench, outsiders.judge_plain, study, untouched)
    losses = {SWARM: loss, RANDOM: chance, PLAIN: plain}
    return Comparison(
        table=table.name,
        seed=seed,
        seconds=seconds,
        losses=losses,
        generations=fitted.generations,
        candidates=fitted.candidates,
        drawn=sum(one.tried for one in drawn),
    )


async def _run(workbench: Workbench, job: Callable[..., Result], *args: Any) -> Result:
    """Run a job of the peers in a training process, on one thread like the jobs of the swarms."""
    return await workbench.run(partial(work.on_one_thread, job, *args))


async def _warm_up(study: Study, workbench: Workbench) -> None:
    """Let all processes load their libraries before either search is timed."""
    jobs = [_run(workbench, outsiders.search_at_random, study, WARM_UP_SECONDS, 0) for _ in range(PROCESSES)]
    await asyncio.gather(*jobs)


def _study(prepared: Prepared, seed: int) -> Study:
    study = Study(Blob.of(prepared.schema), Blob.of(prepared.train), Blob.of(prepared.held_out), seed)
    return replace(study, rest=Blob.of(prepared.rest)) if prepared.rest else study
