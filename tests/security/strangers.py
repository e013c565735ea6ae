"""Acts of another user of the machine."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.installed_programs import open_programs

STRANGER = "games"


def as_stranger(*command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command as the user `games`, without anything of ours; as root, or by a sudo that asks nothing."""
    # The test suite's interpreter may stand in a folder that is closed to others; the programs must not.
    if os.geteuid() == 0:
        return subprocess.run(
            command,
            user=STRANGER,
            group=STRANGER,
            extra_groups=(),
            cwd="/",
            env={"PATH": os.defpath},
            capture_output=True,
            text=True,
            timeout=60,
        )
    sudo = ("sudo", "-n", "-u", STRANGER, "--")
    if shutil.which("sudo") is None or subprocess.run((*sudo, "true"), capture_output=True, timeout=60).returncode:
        pytest.fail(f"this test acts as the user {STRANGER}: run it as root, or let sudo do so without a password")
    return subprocess.run((*sudo, *command), cwd="/", capture_output=True, text=True, timeout=60)


def ask_as_stranger(socket_folder: Path, query: str) -> "subprocess.CompletedProcess[str]":
    """Return what a stranger gets who connects as the superuser of the embedded PostgreSQL."""
    return as_stranger(str(open_programs() / "psql"), "-XAt", "-h", str(socket_folder), "-U", "postgres", "-c", query)
