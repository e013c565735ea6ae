"""How large a search may be: before START each family is trained once, and the time that takes decides.

The sizes then stand in START. They do not change any more, so a run of the same sizes is the same run.
"""

import asyncio
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from apc_automl.data.table_schema import Schema
from apc_automl.run.form import GENERATIONS, LEAST_ROWS, MOST_GENERATIONS, ROUNDS, RunForm
from apc_automl.training import work
from apc_automl.training.material import Blob, Prepared, Study
from apc_automl.training.search import default_recipe
from apc_automl.training.spaces import SWARMS, families_of
from apc_automl.training.workbench import Workbench
from apc_bus.settings import AutomlSettings

FITS = 6.0
"""One measured model costs as much as so many trainings: four folds, two steps of the curve, the model itself."""
BETWEEN_SECONDS = 0.4
"""From one generation to the next beside the training: packets, the gate, the sentinel."""
USED_SHARE = 0.9
"""Of the search time; what is left is for models that take longer than usual."""
CLOSING_TRAININGS = 2.5
"""After the search the winner is trained and judged again, which takes as long as to train so many generations."""
LEAST_GENERATIONS = 6
"""For fewer than these the search looks at fewer rows."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many generations and rounds fit into the search time, over how many rows."""

    generations: int
    rounds: int
    rows: int
    generation_seconds: float

    @property
    def words(self) -> str:
        """One line for people."""
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        generations = "1 generation" if self.generations == 1 else f"{self.generations} generations"
        return (
            f"the search: at most {rounds} of {generations} with {len(SWARMS)} models each; "
            f"a generation takes about {self.generation_seconds:.1f} s"
        )


def choose_sizes(
    generation_seconds: float, search_seconds: float, rows: int, most: int, *, may_shrink: bool = True
) -> Sizes:
    """Return the largest sizes that fit: first generations, then rows down to what a few generations need.

    Args:
        generation_seconds: how long a generation over all these rows takes.
        search_seconds: how long the search may take.
        rows: how many rows are there to look at.
        most: no more generations than these; a second round where two times as many fit.
        may_shrink: whether fewer rows may be looked at.
    """
    training = max(1e-3, generation_seconds - BETWEEN_SECONDS)
    if may_shrink and rows > LEAST_ROWS:
        allowed = USED_SHARE * search_seconds - LEAST_GENERATIONS * BETWEEN_SECONDS
        allowed /= LEAST_GENERATIONS + CLOSING_TRAININGS
        share = min(1.0, max(allowed / training, LEAST_ROWS / rows))
        rows, training = max(LEAST_ROWS, math.floor(rows * share)), training * share
    seconds = training + BETWEEN_SECONDS
    fitting = math.floor((USED_SHARE * search_seconds - CLOSING_TRAININGS * training) / seconds + 1e-6)
    return Sizes(max(1, min(most, fitting)), ROUNDS if fitting >= 2 * most else 1, rows, seconds)


def generation_seconds(fits: Mapping[str, Sequence[float]], processes: int) -> float:
    """Return how long a generation takes: all swarms train at once, in so many processes.

    Args:
        fits: swarm -> seconds of one training of each of its families.
        processes: how many train at the same time.
    """
    swarms = [FITS * fmean(seconds) for seconds in fits.values()]
    return max(max(swarms), sum(swarms) / processes) + BETWEEN_SECONDS


async def fit_to_budget(
    settings: AutomlSettings, form: RunForm, prepared: Prepared, workbench: Workbench, processes: int
) -> tuple[AutomlSettings, Sizes]:
    """Return the settings with sizes that fit the search time, and the sizes.

    What the user has fixed stays. The time of the measurement is taken from the search time.
    """
    began = time.monotonic()
    study = Study(Blob.of(prepared.schema), Blob.of(prepared.train), Blob.of(prepared.held_out), settings.seed)
    seconds = generation_seconds(await _time_families(study, workbench), processes)
    left = max(1.0, form.search_seconds - (time.monotonic() - began))
    parts = prepared.profile["parts"]
    rows = parts["train"] + parts["held_out"] + sum(parts["untouched"])
    most = GENERATIONS if form.budget_seconds is None else MOST_GENERATIONS
    sizes = choose_sizes(seconds, left, rows, most, may_shrink=form.maximum_rows is None)
    changed = {
        "generations": sizes.generations,
        "maximum_rounds": form.rounds or sizes.rounds,
        "maximum_rows": settings.maximum_rows if sizes.rows == rows else sizes.rows,
        "budget_seconds": max(1, round(left)),
    }
    return settings.model_copy(update=changed), sizes


async def _time_families(study: Study, workbench: Workbench) -> dict[str, list[float]]:
    """Return swarm -> seconds of one training of each of its families with their usual settings."""
    schema = Schema.model_validate_json(study.schema.data)
    families = {swarm: families_of(swarm, schema.problem) for swarm in SWARMS}
    jobs = [
        workbench.run(work.time_training, default_recipe(family, swarm).canonical(), study)
        for swarm, names in families.items()
        for family in names
    ]
    found = iter(await asyncio.gather(*jobs))
    return {swarm: [next(found) for _ in names] for swarm, names in families.items()}


def parallel_trainings() -> int:
    """Return how many models of a generation are trained at the same time on this machine."""
    return max(1, min(len(SWARMS), os.cpu_count() or 1))
