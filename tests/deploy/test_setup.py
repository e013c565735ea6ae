"""`make setup` and `make demo` on machines of other kinds: what they say, and where they put what they make."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.security.strangers import as_stranger
from tests.support.installed_programs import open_folder

ROOT = Path(__file__).parents[2]
NEEDED = ("Makefile", "pyproject.toml", "constraints.txt")


@pytest.fixture
def checkout() -> Iterator[Path]:
    """A checkout, as far as the setup reads it, in a folder with a space in its name that others may read."""
    with open_folder() as folder:
        path = folder / "my checkout"
        path.mkdir()
        path.chmod(0o755)
        for name in NEEDED:
            shutil.copy(ROOT / name, path)
        yield path


def make(checkout: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"], "HOME": str(checkout)}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60)


def stand_in(checkout: Path, program: str) -> str:
    """Make an interpreter that does as these lines of shell say, and else as ours."""
    file = checkout / "python3.99"
    file.write_text(f'#!/bin/sh\n{program}\nexec {sys.executable} "$@"\n')
    file.chmod(0o755)
    return f"PY=./{file.name}"


def test_without_venv_it_names_the_package(checkout: Path) -> None:
    python = stand_in(checkout, 'case "$2" in *ensurepip*) exit 1;; esac')

    asked = make(checkout, python, "setup")

    assert asked.returncode == 2
    ours = "python{}.{}-venv".format(*sys.version_info[:2])
    assert f"apt-get install python3-venv ({ours} where this is not Debian's default Python)" in asked.stdout
    assert not (checkout / ".venv").exists()


def test_without_an_interpreter_it_names_the_packages(checkout: Path) -> None:
    asked = make(checkout, "PY=python3.99", "setup")

    assert asked.returncode == 2
    assert "there is no python3.99: apt-get install python3 python3-venv" in asked.stdout


def test_an_empty_interpreter_is_the_default(checkout: Path) -> None:
    assert "python3 -m venv .venv\n" in make(checkout, "--dry-run", "PY=", "setup").stdout


def test_what_may_be_written_holds_what_is_made(checkout: Path) -> None:
    planned = make(checkout, "--dry-run", "demo").stdout

    assert "\n.ci/demo packages .venv\n" in planned
    assert planned.endswith("\n.venv/bin/apc demo\n")


def test_the_demo_takes_the_whole_environment_where_it_is(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv/.installed").touch()

    planned = make(checkout, "--dry-run", "demo").stdout

    assert ".ci/demo" not in planned
    assert planned.endswith("\n.venv/bin/apc demo\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="what root makes is what others may only read")
def test_a_checkout_that_may_not_be_written(checkout: Path) -> None:
    run = ("env", "HOME=/home/ann", "make", "--no-print-directory", "--dry-run", "--directory", str(checkout))

    planned = as_stranger(*run, "demo").stdout

    made = planned.split("-m venv ")[1].splitlines()[0].removesuffix("/.venv")
    assert made.startswith("/home/ann/.cache/apc-bus/")
    assert f"\n.ci/demo packages {made}/.venv\n" in planned
    assert planned.endswith(f"\n{made}/.venv/bin/apc demo\n")
    assert "make page" not in planned
    refused = as_stranger(*run, "test")
    assert refused.returncode == 2
    assert "this checkout may not be written" in refused.stderr
