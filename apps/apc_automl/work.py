"""The jobs for the training processes, by name: the roles themselves load no numeric library.

Each computes on one thread: neither speed nor a single bit of a model may depend on the number of cores.
"""

from apc_automl.material import Blob, JsonObject, Measured, Prepared, Study


def prepare(path: str, target: str, problem: str | None, seed: int, rounds: int, maximum_rows: int) -> Prepared:
    """`training.prepare` in this process. Raises TableInvalid."""
    from apc_automl import training

    return training.prepare(path, target, problem, seed, rounds, maximum_rows)


def measure(recipe: bytes, study: Study) -> Measured:
    """`training.measure` in this process."""
    from threadpoolctl import threadpool_limits

    from apc_automl import training

    with threadpool_limits(1):
        return training.measure(recipe, study)


def refit(recipe: bytes, study: Study) -> Measured:
    """`training.refit` in this process."""
    from threadpoolctl import threadpool_limits

    from apc_automl import training

    with threadpool_limits(1):
        return training.refit(recipe, study)


def rescore(model: Blob, predictions: bytes, study: Study) -> JsonObject:
    """`training.rescore` in this process. Raises ModelRefused."""
    from threadpoolctl import threadpool_limits

    from apc_automl import training

    with threadpool_limits(1):
        return training.rescore(model, predictions, study)


def validate(model: Blob, predictions: bytes, again: bytes, recipe: bytes, study: Study, untouched: Blob) -> JsonObject:
    """`training.validate` in this process. Raises ModelRefused."""
    from threadpoolctl import threadpool_limits

    from apc_automl import training

    with threadpool_limits(1):
        return training.validate(model, predictions, again, recipe, study, untouched)


def unusable(recipe: bytes, study: Study, untouched: Blob) -> JsonObject:
    """`training.unusable` in this process."""
    from apc_automl import training

    return training.unusable(recipe, study, untouched)
