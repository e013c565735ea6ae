"""The state of an orchestrator for /readyz, /metrics and tests."""

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
        """The server of the current lease, while this process holds the shard."""

    @property
    def is_active(self) -> bool:
        """Whether this process judges the shard's inputs."""
        return self.server is not None

    @property
    def epoch(self) -> int | None:
        """The epoch held, None on standby."""
        return None if self.server is None else self.server.epoch

    def take(self, server: Serving) -> None:
        """Note that the shard is held, and by which server."""
        self.server = server

    def leave(self) -> None:
        """Note that the shard is no longer held."""
        self.server = None
