"""`apc run`: the reference swarm on a user's table, from the first check of the file to the summary."""

from apc_console.automl_run.form import RunForm
from apc_console.automl_run.run import run_swarm, write_report

__all__ = ["RunForm", "run_swarm", "write_report"]
