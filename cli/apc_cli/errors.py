"""Errors of the console.

ApcError
  InputUnusable        a file, an option or a CSV that cannot be used; says what to change (apc_contracts.errors)
  ServiceAway          a broker, a database or a service that does not answer in time (apc_contracts.errors)
  ConsoleError
    LogKeyElsewhere    this machine has no key to check the log's checkpoints with; says where it is
    ModuleUnusable     `module:agent` does not lead to an agent
    RevocationIncomplete  an agent is revoked, and something that it logs in with is left
    LogDiffers         a log that does not say again what was recorded (exit 4)
    OutputLost         a standard output that takes no more: a full disk, a reader that has left
"""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from apc_contracts.errors import ApcError, InputUnusable, ServiceAway

__all__ = [
    "ConsoleError",
    "InputUnusable",
    "LogDiffers",
    "LogKeyElsewhere",
    "ModuleUnusable",
    "OutputLost",
    "RevocationIncomplete",
    "ServiceAway",
]


class ConsoleError(ApcError):
    """The command could not do what was asked; `exit_code` is the exit code of the process."""

    exit_code: ClassVar[int] = 2


class LogKeyElsewhere(ConsoleError):
    """This machine has no key to check the log's checkpoints with; a new one would make each of them wrong."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"no key of the log: {path} does not exist. Run the command where the log writer runs (in Docker Compose: "
            "`docker compose exec persister apc log verify`), or give --key the keys that `apc log key` prints there"
        )


class ModuleUnusable(ConsoleError):
    """A `module:agent` that does not lead to an agent."""


class OutputLost(ConsoleError):
    """A standard output that takes no more: a full disk, or a reader that has left (`apc packet trace | head`)."""


class RevocationIncomplete(ConsoleError):
    """Something of an agent that was to be revoked is left: registration, broker user or database login; names it."""

    def __init__(self, agent_id: str, left: Sequence[str]) -> None:
        super().__init__(
            f"agent {agent_id} is not fully revoked. Left: {'; '.join(left)}. Repeat the command once that is mended"
        )


class LogDiffers(ConsoleError):
    """A log that differs from its recomputation; names the place."""

    exit_code: ClassVar[int] = 4
