"""Crash points kill exactly where they are told to."""

import os
import signal
import subprocess
import sys

import pytest

PROGRAM = """
from apc_bus.crash_points import crash_point
for step in range(4):
    crash_point("a")
    crash_point("b")
    print(step, flush=True)
"""


@pytest.mark.parametrize(
    ("crash_at", "code", "printed"),
    [
        (None, 0, "0\n1\n2\n3\n"),
        ("other", 0, "0\n1\n2\n3\n"),
        ("b", -signal.SIGKILL, ""),
        ("b:3", -signal.SIGKILL, "0\n1\n"),
    ],
)
def test_a_process_dies_at_its_point(crash_at: str | None, code: int, printed: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "APC_CRASH_AT"}
    if crash_at is not None:
        environment["APC_CRASH_AT"] = crash_at
    result = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert result.returncode == code
    assert result.stdout == printed
