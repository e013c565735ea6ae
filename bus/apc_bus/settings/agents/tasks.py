"""The durable tasks of agents."""

from datetime import timedelta

from pydantic import Field

from apc_bus.settings.durations import Interval
from apc_bus.settings.setting_sources import ApcSettings


class TaskSettings(ApcSettings):
    """Concurrency and lease of tasks."""

    task_concurrency: int = Field(default=4, ge=1)
    """Maximum concurrent tasks of a worker."""
    task_lease: Interval = timedelta(seconds=15)
    """Time without a renewal after which another worker takes over a task."""
    task_poll: Interval = timedelta(seconds=1)
    """Interval at which a worker checks the tasks."""
