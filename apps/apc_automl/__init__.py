"""The reference swarm: an audited search for the best model of a table (needs the extra `automl`).

The roles meet in packets and in the artifact store alone. Importing this loads no numeric library: the training
processes do.
"""

from apc_automl.collection import collect_outcome
from apc_automl.errors import ModelRefused, TableInvalid, TrainingUnavailable
from apc_automl.outcome import Outcome
from apc_automl.progress import follow_run
from apc_automl.roles import MODULE, ROLES, make_agents
from apc_automl.workbench import Workbench
from apc_bus.settings import AutomlSettings

__all__ = [
    "MODULE",
    "ROLES",
    "AutomlSettings",
    "ModelRefused",
    "Outcome",
    "TableInvalid",
    "TrainingUnavailable",
    "Workbench",
    "collect_outcome",
    "follow_run",
    "make_agents",
]
