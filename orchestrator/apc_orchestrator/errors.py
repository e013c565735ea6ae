"""Errors of the orchestrator.

ApcError
  GateError
    ShardLost          the orchestrator no longer holds its shard: memory dropped, the shard is taken again
    SessionUnloadable  a session's state cannot be read now: its inputs wait
"""

from apc_contracts.errors import ApcError


class GateError(ApcError):
    """The base of the orchestrator's errors."""


class ShardLost(GateError):
    """The orchestrator no longer holds its shard: it drops its memory, gives up the lease, and acquires it again."""


class SessionUnloadable(GateError):
    """The database does not answer: inputs of sessions that are not in memory wait unacknowledged."""
