"""Count in files what a process did, for tests that kill it."""

import os
from pathlib import Path

ACCOUNT = "ACCOUNT"
"""Environment: the folder of the files."""


def note(name: str, line: str) -> int:
    """Add a line to a file of the account; return how many there are."""
    path = Path(os.environ[ACCOUNT]) / name
    with path.open("a") as lines:
        lines.write(f"{line}\n")
    return len(path.read_text().splitlines())
