"""Test support: `apc` commands as forks of one process that has imported the console, which saves the import time.

A fork has its own folder, environment and standard files, and ends like a process. The parent of all forks has no
thread and no event loop.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

_ROOT = Path(__file__).parents[2]
_MODULE = "tests.support.command_forks"
IMPORTED = (
    "apc_agents",
    "apc_bus.rabbit",
    "apc_cli.connections",
    "apc_cli.system",
    "apc_log.queries",
    "apc_persister.database.embedded",
)
"""What most commands import when they run."""


class CommandForks:
    """Runs commands; the parent of the forks starts with the first of them and ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parent: socket.socket | None = None

    def run(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], stdin: str, timeout_seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as `subprocess.run` does. Raises subprocess.TimeoutExpired."""
        with ExitStack() as opened:
            files = [opened.enter_context(TemporaryFile("w+", encoding="utf-8")) for _ in range(3)]
            files[0].write(stdin)
            files[0].flush()
            files[0].seek(0)
            ours, theirs = (opened.enter_context(one) for one in socket.socketpair())
            self._hand_over([theirs.fileno(), *(file.fileno() for file in files)])
            theirs.close()
            channel = opened.enter_context(ours.makefile("rw", encoding="utf-8"))
            channel.write(json.dumps([list(arguments), str(folder), dict(environment)]) + "\n")
            channel.flush()
            child = int(channel.readline())
            ours.settimeout(timeout_seconds)
            try:
                code = os.waitstatus_to_exitcode(int(channel.readline()))
            except TimeoutError as error:
                os.kill(child, signal.SIGKILL)
                raise subprocess.TimeoutExpired(["apc", *arguments], timeout_seconds) from error
            return subprocess.CompletedProcess(["apc", *arguments], code, _content(files[1]), _content(files[2]))

    def _hand_over(self, files: Sequence[int]) -> None:
        with self._lock:
            if self._parent is None:
                self._parent, theirs = socket.socketpair()
                with theirs:
                    parent = subprocess.Popen(
                        [sys.executable, "-m", _MODULE, str(theirs.fileno())],
                        cwd=_ROOT,
                        pass_fds=[theirs.fileno()],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                    )
                    parent.returncode = 0  # it ends by itself; nobody waits for it
            socket.send_fds(self._parent, [b"."], files)


def _content(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _serve(requests: socket.socket) -> list[str] | None:
    """Fork for each request; return its arguments in the fork that runs it, None when there are no more requests."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, files, _, _ = socket.recv_fds(requests, 1, 4)
        if not message:
            return None
        if os.fork() == 0:
            requests.close()
            return _fork_command(*files)
        for file in files:
            os.close(file)


def _fork_command(channel: int, *standard_files: int) -> list[str]:
    """Fork once more: the inner process runs the command, the outer one reports how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(fileno=channel) as asked, asked.makefile("rw", encoding="utf-8") as lines:
        arguments, folder, environment = json.loads(lines.readline())
        child = os.fork()
        if child:
            lines.write(f"{child}\n")
            lines.flush()
            _, status = os.waitpid(child, 0)
            lines.write(f"{status}\n")
            lines.flush()
            os._exit(0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[0] = folder
    for number, file in enumerate(standard_files):
        os.dup2(file, number)
        os.close(file)
    return list(arguments)


if __name__ == "__main__":
    from apc_cli.commands import main

    for module in IMPORTED:
        import_module(module)
    asked_for = _serve(socket.socket(fileno=int(sys.argv[1])))
    if asked_for is not None:
        main(asked_for)
