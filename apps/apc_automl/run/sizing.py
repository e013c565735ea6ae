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
from apc_automl.settings import AutomlSettings
from apc_automl.training import work
from apc_automl.training.material import Blob, Prepared, Study
from apc_automl.training.recipes import SWARMS, families_of
from apc_automl.training.search import default_recipe
from apc_automl.training.workbench import Workbench

FITS = 6.0
"""One measured model costs as much as so many trainings: four folds, two steps of the curve, the model itself."""
TRIED_FITS = 2.0
"""One method that is only compared: a fold, and for every second one the other three."""
BETWEEN_SECONDS = 0.4
"""From one generation to the next beside the training: packets, the orchestrator, the sentinel."""
USED_SHARE = 0.9
"""Of the search time; what is left is for models that take longer than usual."""
MEASURED_SHARE = 0.25
"""Of the search time, at most, is taken for the measurement of how long trainings take."""
CLOSING_TRAININGS = 2.5
"""After the search the winner is trained and judged again, which takes as long as to train so many generations."""
LEAST_GENERATIONS = 6
"""For fewer than these the search looks at fewer rows."""
SPARE = 1.5
"""Times as many generations as expected: the measurement may have met a busy moment, and the timer ends the search."""
COMPARING_SHARE, COMPARING_GENERATIONS = 0.7, 4
"""Of a round's time, if at least so many generations are left: to compare methods before one is trained."""
LEAST_CANDIDATES = 2
"""Fewer generations before fewer methods: one alone is compared with nothing."""
MOST_CANDIDATES = 16
"""Methods that a swarm compares in a generation; more time gives more generations."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a generation in which each swarm trains one model, and of one more method that all of them try."""

    generation: float
    candidate: float

    def scaled(self, share: float) -> "Costs":
        """Return what they are for this share of the rows."""
        training = max(1e-3, self.generation - BETWEEN_SECONDS)
        return Costs(training * share + BETWEEN_SECONDS, max(1e-3, self.candidate * share))


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many generations and rounds fit into the search time, of how many methods, over how many rows."""

    generations: int
    candidates: int
    rounds: int
    rows: int
    generation_seconds: float

    @property
    def words(self) -> str:
        """One line for people."""
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        generations = "1 generation" if self.generations == 1 else f"{self.generations} generations"
        tried = f", each the best of {self.candidates} methods" if self.candidates > 1 else ""
        return (
            f"the search: at most {rounds} of {generations} with {len(SWARMS)} models each{tried}; "
            f"a generation takes about {self.generation_seconds:.1f} s"
        )


def choose_sizes(
    costs: Costs,
    search_seconds: float,
    rows: int,
    most: int,
    *,
    candidates: int | None = None,
    may_shrink: bool = True,
) -> Sizes:
    """Return the largest sizes that fit: a few generations, rows down to what those need, then methods to compare.

    Somewhat more generations than fit are allowed: what ends a search in time is its timer.

    Args:
        costs: what a generation over all these rows costs.
        search_seconds: how long the search may take.
        rows: how many rows are there to look at.
        most: no more generations than these; a second round where two times as many fit.
        candidates: how many methods a swarm compares in each generation, where that is fixed.
        may_shrink: whether fewer rows may be looked at.
    """
    share = _share_of_rows(costs, search_seconds, rows) if may_shrink and rows > LEAST_ROWS else 1.0
    rows, costs = max(min(rows, LEAST_ROWS), math.floor(rows * share)), costs.scaled(share)
    if candidates is not None:
        costs = Costs(costs.generation + (candidates * costs.candidate if candidates > 1 else 0.0), costs.candidate)
    closing = CLOSING_TRAININGS * (costs.generation - BETWEEN_SECONDS)
    fitting = max(1, math.floor((USED_SHARE * search_seconds - closing) / costs.generation + 1e-6))
    rounds = ROUNDS if fitting >= 2 * most else 1
    if candidates is not None:
        return Sizes(_with_spare(fitting, most), candidates, rounds, rows, costs.generation)
    seconds = (USED_SHARE * search_seconds - closing) / rounds
    few = max(COMPARING_GENERATIONS, math.floor((1 - COMPARING_SHARE) * seconds / costs.generation))
    generations = min(most, fitting, few)
    found = min(MOST_CANDIDATES, math.floor((seconds / generations - costs.generation) / costs.candidate))
    if found < LEAST_CANDIDATES:
        found = LEAST_CANDIDATES
        generations = math.floor(seconds / (costs.generation + found * costs.candidate))
    if generations < 1:
        return Sizes(_with_spare(fitting, most), 1, rounds, rows, costs.generation)
    return Sizes(_with_spare(generations, most), found, rounds, rows, costs.generation + found * costs.candidate)


def _with_spare(generations: int, most: int) -> int:
    return min(most, math.ceil(SPARE * generations))


def _share_of_rows(costs: Costs, search_seconds: float, rows: int) -> float:
    """Return the share of the rows with which a few generations fit; no less than the least that is looked at."""
    allowed = USED_SHARE * search_seconds - LEAST_GENERATIONS * BETWEEN_SECONDS
    allowed /= LEAST_GENERATIONS + CLOSING_TRAININGS
    return min(1.0, max(allowed / max(1e-3, costs.generation - BETWEEN_SECONDS), LEAST_ROWS / rows))


def costs_of(fits: Mapping[str, Sequence[float]], processes: int) -> Costs:
    """Return what a generation costs: all swarms train at once, in so many processes.

    Args:
        fits: swarm -> seconds of one training of each of its families.
        processes: how many train at the same time.
    """
    swarms = [fmean(seconds) for seconds in fits.values()]
    training = FITS * max(max(swarms), sum(swarms) / processes)
    # Each method that a swarm compares is a separate job: they fill all processes.
    return Costs(training + BETWEEN_SECONDS, TRIED_FITS * sum(swarms) / processes)


async def fit_to_budget(
    settings: AutomlSettings, form: RunForm, prepared: Prepared, workbench: Workbench, processes: int
) -> tuple[AutomlSettings, Sizes]:
    """Return the settings with sizes that fit the search time, and the sizes.

    What the user has fixed stays. The time of the measurement is taken from the search time, within a bound.
    """
    began = time.monotonic()
    study = Study(Blob.of(prepared.schema), Blob.of(prepared.train), Blob.of(prepared.held_out), settings.seed)
    costs = costs_of(await _time_families(study, workbench), processes)
    left = search_time_left(form.search_seconds, time.monotonic() - began)
    parts = prepared.profile["parts"]
    rows = parts["train"] + parts["held_out"] + sum(parts["untouched"])
    most = GENERATIONS if form.budget_seconds is None else MOST_GENERATIONS
    may_shrink = form.maximum_rows is None
    sizes = choose_sizes(costs, left, rows, most, candidates=form.candidates, may_shrink=may_shrink)
    changed = {
        "generations": sizes.generations,
        "candidates": sizes.candidates,
        "maximum_rounds": form.rounds or sizes.rounds,
        "maximum_rows": settings.maximum_rows if sizes.rows == rows else sizes.rows,
        # The open generation is finished when the timer ends the search.
        "budget_seconds": max(1, round(left / 2), math.floor(left - sizes.generation_seconds)),
    }
    return settings.model_copy(update=changed), sizes


def search_time_left(search_seconds: float, measured_for: float) -> float:
    """Return the search time after a measurement; one in a busy moment costs a quarter of it at most."""
    return max(1.0, search_seconds - min(measured_for, MEASURED_SHARE * search_seconds))


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
