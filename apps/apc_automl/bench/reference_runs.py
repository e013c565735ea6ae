"""Runs of the reference swarm in this process, read back from their logs; generated tables, and means of runs."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory

from apc_automl.report.run_log import RunLog, follow_run, read_run
from apc_automl.roles import make_agents
from apc_automl.settings import AutomlSettings
from apc_automl.swarm.priors import LoggedPast
from apc_automl.training.recipes import Recipe
from apc_automl.training.workbench import Workbench
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_client.in_process import run_embedded

TARGET = "target"
PROCESSES = 2
ROWS = 600
"""Of each generated table."""
FIRST_SEED = 1
BUDGET_SECONDS = 3600
VETO_WINDOW_MS = 100


class Generator(StrEnum):
    """Where generated tables come from."""

    FRIEDMAN = "friedman"
    """A regression on ten columns of which five matter, with a product, a square and two lines (Friedman, Multivariate
    Adaptive Regression Splines, 1991): kinds of models differ much on it."""
    CLUSTERS = "clusters"
    """Two classes of three clusters each in twelve columns of which six matter: the usual settings are hard to beat."""


def write_samples(folder: Path, generator: Generator, seed: int, samples: int, rows: int) -> list[Path]:
    """Write disjoint samples of one draw as CSV with the target column `TARGET`.

    Args:
        seed: the same seed gives the same tables.
        samples: how many tables.
        rows: of each table.
    """
    import pandas as pd
    from sklearn.datasets import make_classification, make_friedman1

    if generator is Generator.FRIEDMAN:
        features, target = make_friedman1(n_samples=samples * rows, n_features=10, noise=1.0, random_state=seed)
        labels: list[float | str] = [round(float(value), 6) for value in target]
    else:
        features, target = make_classification(
            n_samples=samples * rows,
            n_features=12,
            n_informative=6,
            n_redundant=2,
            n_clusters_per_class=3,
            class_sep=1.2,
            flip_y=0.03,
            random_state=seed,
        )
        labels = [f"kind-{value}" for value in target]
    frame = pd.DataFrame(features, columns=[f"x{number}" for number in range(features.shape[1])]).round(6)
    frame[TARGET] = labels
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(samples):
        path = folder / f"{generator}-{seed}-{number}.csv"
        frame.iloc[number * rows : (number + 1) * rows].to_csv(path, index=False, lineterminator="\n")
        paths.append(path)
    return paths


@dataclass(frozen=True)
class SwarmRun:
    """What a run tried: (round 1) generation -> swarm -> recipe and its outcome on held-out data."""

    log: RunLog
    recipes: dict[int, dict[str, Recipe]]
    outcomes: dict[int, dict[str, float]]
    validated_loss: float | None
    """The loss of the last final model on data that nobody had seen; None when none was built."""

    @property
    def best_outcome(self) -> float:
        """The best outcome on held-out data of the first round; 0 without any."""
        return max((outcome for swarms in self.outcomes.values() for outcome in swarms.values()), default=0.0)

    @property
    def validated_outcome(self) -> float | None:
        """The outcome of the last final model on data that nobody had seen; None when none was built."""
        if not self.log.validations:
            return None
        return float(self.log.validations[-1].payload["metric_set"]["outcome"])


@contextmanager
def bench_folder() -> Iterator[Path]:
    """Make a folder for the logs of an experiment; remove it afterwards."""
    with TemporaryDirectory(prefix="apc-bench-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@contextmanager
def training_processes() -> Iterator[Workbench]:
    """Start the processes that train, shared by all runs of an experiment."""
    workbench = Workbench(PROCESSES)
    try:
        yield workbench
    finally:
        workbench.close()


def run_settings(table: Path, name: str, seed: int, generations: int, *, priors: bool) -> AutomlSettings:
    """Return a run over a generated table, named after what it is for."""
    run_id = f"{name}-{seed}"
    return AutomlSettings(
        data=table,
        target=TARGET,
        generations=generations,
        seed=seed,
        budget_seconds=BUDGET_SECONDS,
        veto_window_ms=VETO_WINDOW_MS,
        session_id=run_id,
        run_id=run_id,
        priors=priors,
    )


async def run_swarm_once(
    folder: Path, settings: AutomlSettings, workbench: Workbench, contract: Path | None = None
) -> SwarmRun:
    """Run to the end of the session, with the log in a folder; another run in the same folder has it as its past."""
    bus, database = BusSettings(data_dir=folder, amqp_url=None), DatabaseSettings(database_url=None)
    async with run_embedded(bus, database, contract) as system:
        await system.start_agents(make_agents(settings, workbench, LoggedPast(system.database_url)))
        async for _ in follow_run(system.pool, settings.run_id):
            pass
        log = await read_run(system.pool, settings.run_id)
        recipes: dict[int, dict[str, Recipe]] = {}
        outcomes: dict[int, dict[str, float]] = {}
        for one in log.evaluations:
            if one.round == 1 and len(one.evidence) == 3:
                recipe = Recipe.read(await system.artifacts.get(one.evidence[2]))
                recipes.setdefault(one.generation, {})[one.swarm] = recipe
                outcomes.setdefault(one.generation, {})[one.swarm] = one.payload["metric_set"]["outcome"]
        loss = None
        if log.validations:
            loss = float(json.loads(await system.artifacts.get(log.validations[-1].evidence[0]))["loss"])
    return SwarmRun(log, recipes, outcomes, loss)


CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval by Student's t; with fewer than two values the interval is the mean."""

    mean: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """Return the mean and interval of independent runs. Raises ValueError without values."""
        from scipy.stats import t

        if not values:
            raise ValueError("an interval needs at least one value")
        mean = fmean(values)
        if len(values) < 2:
            return cls(mean, mean, mean, len(values))
        reach = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
        return cls(mean, mean - reach, mean + reach, len(values))

    def __str__(self) -> str:
        return f"{self.mean:.4f} [{self.low:.4f}, {self.high:.4f}]"
