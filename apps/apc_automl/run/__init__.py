"""`apc automl run`: the reference swarm on a user's table, from the first check of the file to the summary."""

from apc_automl.data.table_schema import TableOptions
from apc_automl.run.form import RunForm
from apc_automl.run.swarm import Shown, explain_table, run_swarm, write_report

__all__ = ["RunForm", "Shown", "TableOptions", "explain_table", "run_swarm", "write_report"]
