"""The jobs for the training processes, by name: the roles themselves load no numeric library.

Each computes on one thread: neither speed nor a single bit of a model may depend on the number of cores.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from apc_automl.training.material import Blob, JsonObject, Measured, Prepared, Study

if TYPE_CHECKING:
    from apc_automl.training.outsiders import Found


def prepare(path: str, target: str, problem: str | None, seed: int, rounds: int, maximum_rows: int) -> Prepared:
    """Run `measuring.prepare` in this process. Raises TableInvalid."""
    from apc_automl.training import measuring

    return measuring.prepare(path, target, problem, seed, rounds, maximum_rows)


def measure(recipe: bytes, study: Study) -> Measured:
    """Run `measuring.measure` in this process."""
    from threadpoolctl import threadpool_limits

    from apc_automl.training import measuring

    with threadpool_limits(1):
        return measuring.measure(recipe, study)


def time_training(recipe: bytes, study: Study) -> float:
    """Run `measuring.time_training` in this process: seconds."""
    from threadpoolctl import threadpool_limits

    from apc_automl.training import measuring

    with threadpool_limits(1):
        return measuring.time_training(recipe, study)


def refit(recipe: bytes, study: Study) -> Measured:
    """Run `measuring.refit` in this process."""
    from threadpoolctl import threadpool_limits

    from apc_automl.training import measuring

    with threadpool_limits(1):
        return measuring.refit(recipe, study)


def train_on_all(path: str, problem: str | None, schema: bytes, recipe: bytes, seed: int) -> bytes:
    """Run `measuring.train_on_all` in this process. Raises TableInvalid."""
    from threadpoolctl import threadpool_limits

    from apc_automl.training import measuring

    with threadpool_limits(1):
        return measuring.train_on_all(path, problem, schema, recipe, seed)


def rescore(model: Blob, predictions: bytes, study: Study) -> JsonObject:
    """Run `measuring.rescore` in this process. Raises ModelFileRefused."""
    from threadpoolctl import threadpool_limits

    from apc_automl.training import measuring

    with threadpool_limits(1):
        return measuring.rescore(model, predictions, study)


def validate(model: Blob, predictions: bytes, again: bytes, recipe: bytes, study: Study, untouched: Blob) -> JsonObject:
    """Run `measuring.validate` in this process. Raises ModelFileRefused."""
    from threadpoolctl import threadpool_limits

    from apc_automl.training import measuring

    with threadpool_limits(1):
        return measuring.validate(model, predictions, again, recipe, study, untouched)


def unusable(recipe: bytes, study: Study, untouched: Blob) -> JsonObject:
    """Run `measuring.unusable` in this process."""
    from apc_automl.training import measuring

    return measuring.unusable(recipe, study, untouched)


def shuffled_rows(schema: bytes, rows: bytes, seed: int) -> dict[str, bytes]:
    """Run `reviewing.shuffled_rows` in this process."""
    from apc_automl.training import reviewing

    return reviewing.shuffled_rows(schema, rows, seed)


def review(study: Study, untouched: Blob, said: bytes, shuffled: Mapping[str, bytes]) -> JsonObject:
    """Run `reviewing.review` in this process."""
    from threadpoolctl import threadpool_limits

    from apc_automl.training import reviewing

    with threadpool_limits(1):
        return reviewing.review(study, untouched, said, shuffled)


def search_at_random(study: Study, seconds: float, seed: int) -> "Found | None":
    """Run `outsiders.search_at_random` in this process."""
    from threadpoolctl import threadpool_limits

    from apc_automl.training import outsiders

    with threadpool_limits(1):
        return outsiders.search_at_random(study, seconds, seed)


def judge_recipe(recipe: bytes, study: Study, untouched: Blob) -> float:
    """Run `outsiders.judge_recipe` in this process."""
    from threadpoolctl import threadpool_limits

    from apc_automl.training import outsiders

    with threadpool_limits(1):
        return outsiders.judge_recipe(recipe, study, untouched)


def judge_plain(study: Study, untouched: Blob) -> float:
    """Run `outsiders.judge_plain` in this process."""
    from threadpoolctl import threadpool_limits

    from apc_automl.training import outsiders

    with threadpool_limits(1):
        return outsiders.judge_plain(study, untouched)


def judge_baseline(study: Study, untouched: Blob) -> float:
    """Run `outsiders.judge_baseline` in this process."""
    from threadpoolctl import threadpool_limits

    from apc_automl.training import outsiders

    with threadpool_limits(1):
        return outsiders.judge_baseline(study, untouched)
