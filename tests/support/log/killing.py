"""The embedded Postgres dies and freezes, as its machine would; and how often archivers are killed."""

import os
import signal
from pathlib import Path

import psutil

KILLS = int(os.environ.get("APC_KILLS", "1"))
"""How often an archiver is killed at each of its steps."""


def kill_embedded(folder: Path) -> None:
    """SIGKILL for the server of a data folder; returns when its backends have left too. Its data stay."""
    process = _postmaster(folder)
    children = process.children()
    process.send_signal(signal.SIGKILL)
    psutil.wait_procs(children, timeout=20)


def freeze_embedded(folder: Path, number: signal.Signals) -> None:
    """SIGSTOP or SIGCONT for the server of a data folder and all its backends."""
    process = _postmaster(folder)
    for one in (process, *process.children()):
        one.send_signal(number)


def _postmaster(folder: Path) -> psutil.Process:
    return psutil.Process(int((folder / "postgres" / "postmaster.pid").read_text().split()[0]))
