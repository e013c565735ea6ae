"""An output that takes no more: a full disk, a reader that has left. One line says so, and the exit code is not 0."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from apc_cli.errors import InputUnusable
from apc_cli.output.output import opened

COMMANDS = (("--version",), ("--help",), ("config",))
"""One line, what Typer prints, and more than a buffer holds."""
FULL, LEFT = "No space left on device", "Broken pipe"


@contextmanager
def output(reason: str) -> Iterator[int]:
    """A descriptor that takes nothing, for this reason."""
    if reason == FULL:
        descriptor = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, descriptor = os.pipe()
        os.close(reader)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("reason", [FULL, LEFT])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_whose_output_goes_nowhere_says_so_in_a_line(
    tmp_path: Path, command: tuple[str, ...], reason: str
) -> None:
    with output(reason) as lost:
        ended = subprocess.run(
            [sys.executable, "-m", "apc_cli", *command],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=lost,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.stderr == f"apc: the output could not be written to its end: {reason}\n"
    assert ended.returncode == 2


def test_the_first_failure_is_told_too(tmp_path: Path) -> None:
    """Of a command that fails while its output is lost."""
    with output(FULL) as lost:
        ended = subprocess.run(
            [sys.executable, "-m", "apc_cli", "packet", "validate", "missing.json"],
            cwd=tmp_path,
            stdout=lost,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 2
    assert ended.stderr.startswith("apc: cannot read missing.json") and ended.stderr.count("\n") == 1


@pytest.mark.parametrize("size", [1, 100_000])
def test_a_full_disk_below_a_file_is_no_fault_of_the_database(size: int) -> None:
    with pytest.raises(InputUnusable, match=f"cannot write /dev/full: {FULL}"), opened(Path("/dev/full")) as file:
        file.write(b"x" * size)
