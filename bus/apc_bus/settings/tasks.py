"""The durable tasks of agents."""

from datetime import timedelta

from pydantic import Field

from apc_bus.durations import Interval
from apc_bus.settings.base import ApcSettings


class TaskSettings(ApcSettings):
    """How many tasks run at once, and when one of a dead worker is taken up."""

    task_concurrency: int = Field(default=4, ge=1)
    """Tasks that a worker runs at once."""
    task_lease: Interval = timedelta(seconds=15)
    """After so long without a sign of life a task of a dead worker is taken up by another one."""
    task_poll: Interval = timedelta(seconds=1)
    """How long a worker may take to see what other processes did to the tasks."""
