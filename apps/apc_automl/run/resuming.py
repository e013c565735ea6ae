"""`apc automl run --resume RUN`: another run over the same table that begins with what RUN found."""

from dataclasses import replace

from apc_automl.report.run_log import read_run
from apc_automl.run.form import RunForm
from apc_automl.settings import AutomlSettings
from apc_cli.for_applications import open_log
from apc_contracts.errors import InputUnusable


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
