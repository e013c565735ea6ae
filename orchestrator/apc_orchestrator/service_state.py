"""What an orchestrator says of itself to /readyz and to tests."""

from typing import Protocol


class Serving(Protocol):
    """A shard that is being served."""

    @property
    def epoch(self) -> int: ...
    @property
    def batches(self) -> int: ...


class ShardState:
    """Whether this process holds a shard now."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self._server: Serving | None = None

    @property
    def is_active(self) -> bool:
        """This process judges the shard's inputs."""
        return self._server is not None

    @property
    def epoch(self) -> int | None:
        """The epoch held, None on standby."""
        return None if self._server is None else self._server.epoch

    def take(self, server: Serving) -> None:
        """The shard is ours."""
        self._server = server

    def leave(self) -> None:
        """The shard is not ours any more."""
        self._server = None
