"""What an orchestrator says of itself to /readyz, /metrics and tests."""

from collections.abc import Mapping
from typing import Protocol


class Serving(Protocol):
    """A shard that is being served."""

    @property
    def epoch(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def open_sessions(self) -> int: ...
    @property
    def outstanding(self) -> Mapping[str, int]: ...


class ShardState:
    """Whether this process holds a shard now."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.server: Serving | None = None
        """The tenure, while this process holds the shard."""

    @property
    def is_active(self) -> bool:
        """This process judges the shard's inputs."""
        return self.server is not None

    @property
    def epoch(self) -> int | None:
        """The epoch held, None on standby."""
        return None if self.server is None else self.server.epoch

    def take(self, server: Serving) -> None:
        """The shard is ours."""
        self.server = server

    def leave(self) -> None:
        """The shard is not ours any more."""
        self.server = None
