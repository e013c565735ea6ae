"""The roles, ready to run: `apc worker apc_automl.roles:sentinel`, or all of them in one process.

The functions named after a role read the settings from the environment (APC_AUTOML_…): each is an entry
point that runs in a separate process.
"""

from apc_agents.agent import Agent
from apc_automl.settings import AutomlSettings
from apc_automl.swarm.builder import make_builder
from apc_automl.swarm.librarian import make_librarian
from apc_automl.swarm.priors import LoggedPast, PastRuns
from apc_automl.swarm.sentinel import make_sentinel
from apc_automl.training.recipes import SWARMS
from apc_automl.training.workbench import Workbench
from apc_bus.settings import DatabaseSettings

MODULE = "apc_automl.roles"
ROLES = ("sentinel", "builder_linear", "builder_trees", "builder_neighbours", "librarian")
"""The functions below, in the order to start them: the librarian, who opens the session, last."""


def make_agents(settings: AutomlSettings, workbench: Workbench, past: PastRuns | None = None) -> list[Agent]:
    """Return all roles for one process, sharing its training processes (and nothing else); the librarian last."""
    builders = [make_builder(swarm, workbench) for swarm in SWARMS]
    return [make_sentinel(workbench), *builders, make_librarian(settings, workbench, past)]


def librarian() -> Agent:
    """Return the librarian, from the environment."""
    settings, url = AutomlSettings(), DatabaseSettings().url
    past = None if url is None else LoggedPast(url)
    return make_librarian(settings, Workbench(settings.training_processes), past)


def sentinel() -> Agent:
    """Return the sentinel, from the environment."""
    return make_sentinel(Workbench(AutomlSettings().training_processes))


def builder_linear() -> Agent:
    """Return the builder of swarm `linear`, from the environment."""
    return make_builder("linear", Workbench(AutomlSettings().training_processes))


def builder_trees() -> Agent:
    """Return the builder of swarm `trees`, from the environment."""
    return make_builder("trees", Workbench(AutomlSettings().training_processes))


def builder_neighbours() -> Agent:
    """Return the builder of swarm `neighbours`, from the environment."""
    return make_builder("neighbours", Workbench(AutomlSettings().training_processes))
