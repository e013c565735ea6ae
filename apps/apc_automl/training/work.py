"""The jobs for the training processes, by name: the roles themselves load no numeric library.

Each computes on one thread: neither speed nor a single bit of a model may depend on the number of cores.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from apc_automl.data.table_schema import TableOptions
from apc_automl.training.material import Blob, JsonObject, Measured, Prepared, Study

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def load() -> None:
    """Load the libraries."""
    import apc_automl.training.measuring  # noqa: F401


def check(path: str, target: str, problem: str | None, options: TableOptions | None = None) -> None:
    """Read the table, for the `prepare` that follows; a file that is no use is refused before the libraries are loaded.

    Raises:
        TableInvalid: nothing can be learned from it.
    """
    from apc_automl.data.table import read_ahead

    read_ahead(path, target, problem, options)


def prepare(
    path: str,
    target: str,
    problem: str | None,
    seed: int,
    rounds: int,
    maximum_rows: int,
    options: TableOptions | None = None,
) -> Prepared:
    """Run `measuring.prepare`. Raises TableInvalid."""
    from apc_automl.training.measuring import prepare

    return on_one_thread(prepare, path, target, problem, seed, rounds, maximum_rows, options)


def measure(recipe: bytes, study: Study) -> Measured:
    """Run `measuring.measure`."""
    from apc_automl.training.measuring import measure

    return on_one_thread(measure, recipe, study)


def score_folds(recipe: bytes, study: Study, folds: Sequence[int]) -> list[float]:
    """Run `measuring.score_folds`."""
    from apc_automl.training.measuring import score_folds

    return on_one_thread(score_folds, recipe, study, folds)


def time_training(recipe: bytes, study: Study) -> float:
    """Run `measuring.time_training`: seconds."""
    from apc_automl.training.measuring import time_training

    return on_one_thread(time_training, recipe, study)


def refit(recipe: bytes, study: Study) -> Measured:
    """Run `measuring.refit`."""
    from apc_automl.training.measuring import refit

    return on_one_thread(refit, recipe, study)


def train_on_all(
    path: str, problem: str | None, schema: bytes, recipe: bytes, seed: int, options: TableOptions | None = None
) -> bytes:
    """Run `measuring.train_on_all`. Raises TableInvalid."""
    from apc_automl.training.measuring import train_on_all

    return on_one_thread(train_on_all, path, problem, schema, recipe, seed, options)


def rescore(model: Blob, predictions: bytes, study: Study) -> JsonObject:
    """Run `measuring.rescore`. Raises ModelFileRefused."""
    from apc_automl.training.measuring import rescore

    return on_one_thread(rescore, model, predictions, study)


def validate(model: Blob, predictions: bytes, again: bytes, recipe: bytes, study: Study, untouched: Blob) -> JsonObject:
    """Run `measuring.validate`. Raises ModelFileRefused."""
    from apc_automl.training.measuring import validate

    return on_one_thread(validate, model, predictions, again, recipe, study, untouched)


def unusable(recipe: bytes, study: Study, untouched: Blob) -> JsonObject:
    """Run `measuring.unusable`."""
    from apc_automl.training.measuring import unusable

    return unusable(recipe, study, untouched)


def shuffled_rows(schema: bytes, rows: bytes, seed: int) -> dict[str, bytes]:
    """Run `reviewing.shuffled_rows`."""
    from apc_automl.training.reviewing import shuffled_rows

    return shuffled_rows(schema, rows, seed)


def review(study: Study, untouched: Blob, said: bytes, shuffled: Mapping[str, bytes]) -> JsonObject:
    """Run `reviewing.review`."""
    from apc_automl.training.reviewing import review

    return on_one_thread(review, study, untouched, said, shuffled)


def on_one_thread(job: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
    """Run a job whose libraries are loaded: only those can be limited."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        return job(*args, **kwargs)
