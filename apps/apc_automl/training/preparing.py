"""Prepare the user's table in a training process."""

from apc_automl.settings import AutomlSettings
from apc_automl.training import work
from apc_automl.training.material import Prepared
from apc_automl.training.workbench import Workbench


async def check_table(settings: AutomlSettings, workbench: Workbench) -> None:
    """Read the table in the first process, before others start, so that a refusal does not wait for them.

    Raises:
        TableInvalid: nothing can be learned from it.
    """
    await workbench.run(work.check, str(settings.data), settings.target, settings.problem, settings.options)


async def prepare_table(settings: AutomlSettings, workbench: Workbench) -> Prepared:
    """Return the table of the settings, split and profiled. Raises TableInvalid."""
    return await workbench.run(
        work.prepare,
        str(settings.data),
        settings.target,
        settings.problem,
        settings.seed,
        settings.maximum_rounds,
        settings.maximum_rows,
        settings.options,
    )
