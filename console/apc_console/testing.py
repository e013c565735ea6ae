"""For tests: the `apc` command as a user runs it, a process of its own in a folder of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Settings = Mapping[str, str]
NONE: Settings = {}


class ApcCommand:
    """Runs `apc` in a folder. Nothing of the caller's own settings reaches it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self, *arguments: str, stdin: str = "", timeout_seconds: float = 100, given: Settings = NONE
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end; `given` is added to the process's environment."""
        return subprocess.run(
            self._line(arguments),
            cwd=self.folder,
            env=_environment(given),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )

    def start(self, *arguments: str, given: Settings = NONE) -> subprocess.Popen[str]:
        """Start and go on; the caller ends it. What it says on stderr can be read from the handle."""
        return subprocess.Popen(
            self._line(arguments),
            cwd=self.folder,
            env=_environment(given),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @staticmethod
    def _line(arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "apc_console", *arguments]


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """An `apc run` that has ended; its files are in `out`."""

    apc: ApcCommand
    process: subprocess.CompletedProcess[str]
    out: Path

    @property
    def summary(self) -> dict[str, Any]:
        """What it says of itself in summary.json."""
        return read_summary(self.out)


def read_summary(out: Path) -> dict[str, Any]:
    """summary.json of a run's folder."""
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def _environment(additions: Settings) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("APC_")}
    return inherited | dict(additions)
