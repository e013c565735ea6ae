"""Strategy priors: which recipes to begin with, by what earlier runs on similar tables have found.

An earlier trial counts when its EVAL was verified and the sentinel reproduced its outcome. The choice is a pure
function of those trials and the table's profile: a librarian that starts again chooses the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import asyncpg
from pydantic import ValidationError

from apc_automl.swarm.briefs import TableProfile, distance
from apc_automl.training.recipes import FAMILIES
from apc_bus.database import DATABASE_AWAY, connect
from apc_bus.telemetry import get_logger
from apc_log.errors import ArchiveError
from apc_log.queries.sessions import past_trials

MOST_RUNS = 50
"""The newest runs with a profile that are looked at."""
MAXIMUM_DISTANCE = 0.15
"""Tables further away teach nothing."""
DOUBT = 0.5
"""Counts like the weight of an earlier run in which the recipe was useless: what worked twice goes before what worked
once."""

log = get_logger("apc_automl")


@dataclass(frozen=True)
class PastTrial:
    """A recipe that an earlier run has measured and confirmed."""

    run_id: str
    profile: TableProfile
    family: str
    recipe_hash: str
    outcome: float


class PastRuns(Protocol):
    """Where the trials of earlier runs are read from."""

    async def trials(self, but_not: str, only: str | None = None) -> list[PastTrial]:
        """Return the confirmed trials of the newest runs with a profile, `but_not` this one, or of `only` this one.

        No error reaches the caller: without a past a run begins as if it were the first.
        """


class LoggedPast:
    """The past as the log of a database tells it."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def trials(self, but_not: str, only: str | None = None) -> list[PastTrial]:
        """See `PastRuns`. A log that cannot be read, or only by others, is told and counts as empty."""
        try:
            connection = await connect(self._url)
            try:
                rows = await past_trials(connection, but_not, MOST_RUNS, only)
            finally:
                await connection.close()
        except (*DATABASE_AWAY, ArchiveError) as error:
            log.warning("past_runs_unread", reason=str(error) or type(error).__name__)
            return []
        return [trial for row in rows if (trial := _trial(row)) is not None]


def choose_priors(profile: TableProfile, trials: Sequence[PastTrial], families: Sequence[str]) -> list[str]:
    """Return the recipe hashes to begin with, best first: at most one for each of these families.

    A recipe's score is the mean, over the similar runs that confirmed it, of its outcome over the best one of the run;
    a run weighs 1 - distance, and `DOUBT` weighs against it.
    """
    best: dict[str, float] = {}
    for trial in trials:
        best[trial.run_id] = max(best.get(trial.run_id, 0.0), trial.outcome)
    gained: dict[tuple[str, str], dict[str, float]] = {}
    weights = {trial.run_id: 1.0 - distance(profile, trial.profile) for trial in trials}
    for trial in trials:
        if trial.family not in families or weights[trial.run_id] < 1.0 - MAXIMUM_DISTANCE:
            continue
        relative = trial.outcome / best[trial.run_id] if best[trial.run_id] > 0 else 0.0
        of_recipe = gained.setdefault((trial.family, trial.recipe_hash), {})
        of_recipe[trial.run_id] = max(of_recipe.get(trial.run_id, 0.0), relative)
    scores = {
        key: sum(weights[run] * relative for run, relative in runs.items())
        / (sum(weights[run] for run in runs) + DOUBT)
        for key, runs in gained.items()
    }
    chosen: dict[str, str] = {}
    for family, recipe_hash in sorted(scores, key=lambda key: (-scores[key], key)):
        chosen.setdefault(family, recipe_hash)
    return list(chosen.values())


def chance_to_win(profile: TableProfile, trials: Sequence[PastTrial], families: Sequence[str], rivals: int) -> float:
    """Return how likely one of these families has the best model, by similar runs; without any all rivals are equal."""
    best: dict[str, PastTrial] = {}
    for trial in sorted(trials, key=lambda one: (one.run_id, one.outcome, one.recipe_hash)):
        if distance(profile, trial.profile) <= MAXIMUM_DISTANCE:
            best[trial.run_id] = trial
    won = sum(trial.family in families for trial in best.values())
    return round((won + 1) / (len(best) + rivals), 6)


def _trial(row: asyncpg.Record) -> PastTrial | None:
    """Return the trial of a row; None if another version of the swarm wrote it."""
    try:
        profile = TableProfile.read(row["profile"])
    except ValidationError:
        return None
    if row["family"] not in FAMILIES:
        return None
    return PastTrial(row["run_id"], profile, row["family"], row["recipe_hash"], row["outcome"])
