"""Test support: the `apc` command as a user runs it, a process in a separate folder."""

import json
import os
import pty
import re
import subprocess
import sys
import termios
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.command_forks import CommandForks

Settings = Mapping[str, str]
NONE: Settings = {}
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_STARTED = frozenset({"automl", "serve", "up", "worker"})
"""Long-running commands are started as processes; other commands are forks."""
_forks = CommandForks()
_NOT_COMPARED = frozenset({"artifact_uri", "step"})


class ApcCommand:
    """Runs `apc` in a folder; the caller's settings do not reach it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(
        self, *arguments: str, stdin: str = "", timeout_seconds: float = 100, given: Settings = NONE
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end; `given` is added to the process's environment."""
        if not _STARTED.isdisjoint(arguments[:2]):
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
        return _forks.run(arguments, self.folder, _environment(given), stdin, timeout_seconds)

    def start(self, *arguments: str, given: Settings = NONE, shell: str = 'exec "$@"') -> subprocess.Popen[str]:
        """Start and return; the caller ends it and can read its stderr from the handle.

        `shell` may redirect its streams.
        """
        return subprocess.Popen(
            ["sh", "-c", shell, "sh", *self._line(arguments)],
            cwd=self.folder,
            env=_environment(given),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def at_terminal(
        self, *arguments: str, columns: int = 80, typed: Sequence[tuple[str, str]] = (), given: Settings = NONE
    ) -> tuple[int, str]:
        """Run at a terminal of this width; return the exit code and all that it showed, what was typed too.

        `typed`: what is typed once a text was shown; an empty text is there from the beginning.
        """
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (50, columns))
        command = subprocess.Popen(
            self._line(arguments), cwd=self.folder, env=_environment(given), stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        shown, waiting = b"", list(typed)
        with suppress(OSError):  # it has ended
            while True:
                while waiting and waiting[0][0].encode() in shown:
                    os.write(ours, waiting.pop(0)[1].encode())
                shown += os.read(ours, 65_536)
        os.close(ours)
        return command.wait(), shown.decode().replace("\r\n", "\n")

    @staticmethod
    def _line(arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "apc_cli", *arguments]


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """An `apc automl run` that has ended; its files are in `out`."""

    apc: ApcCommand
    process: subprocess.CompletedProcess[str]
    out: Path

    @property
    def summary(self) -> dict[str, Any]:
        """Return the content of summary.json."""
        return read_summary(self.out)


def read_summary(out: Path) -> dict[str, Any]:
    """Return summary.json of a run's folder."""
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def statements_of(apc: ApcCommand, run_id: str, given: Settings = NONE) -> Counter[str]:
    """Count who said what in which round and generation: type and payload, without ids and places."""
    replayed = apc("packet", "replay", "--run-id", run_id, "--out", "replay.json", given=given)
    assert replayed.returncode == 0, replayed.stderr
    text = (apc.folder / "replay.json").read_text().replace(run_id, "RUN")
    packets = [entry for entry in json.loads(text) if entry["kind"] == "packet"]
    return Counter(
        json.dumps(
            [
                packet["round"],
                packet["generation"],
                packet["sender_agent_id"],
                packet["packet_type"],
                _comparable(packet["packet"]["payload"]),
            ]
        )
        for packet in packets
    )


def _comparable(value: Any) -> Any:
    """Return the value without ids; what is ordered by id is ordered by content."""
    if isinstance(value, dict):
        pairs = [[_comparable(key), _comparable(item)] for key, item in value.items() if key not in _NOT_COMPARED]
        return sorted(pairs, key=json.dumps)
    if isinstance(value, list):
        return sorted((_comparable(item) for item in value), key=json.dumps)
    return _UUID.sub("ID", value) if isinstance(value, str) else value


def _environment(additions: Settings) -> dict[str, str]:
    # Workers of xdist have COLUMNS and LINES, which would win over the size of a terminal.
    left_out = ("APC_", "COLUMNS", "LINES")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return inherited | dict(additions)
