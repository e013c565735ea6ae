"""`apc new`: a project with a team in it."""

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from apc_console.output.terminal import echo


def new(name: Annotated[str, typer.Argument(help="Such as my-team: a new or empty folder.")]) -> None:
    """Write a project: a team of two agents, its tests, Makefile, Dockerfile, compose override and CI."""
    from apc_console.new_project import write_project

    folder = write_project(name, Path())
    echo(f"{folder}: a team of two agents. Next:")
    echo(f"  cd {folder}")
    echo(f"  make test{_interpreter()}")
    echo(f"  make run{_interpreter()}")


def _interpreter() -> str:
    """Return the argument that names this Python, unless `python3` starts it."""
    found = shutil.which("python3")
    is_active = found is not None and Path(found).parent.resolve() == Path(sys.executable).parent.resolve()
    return "" if is_active else f" PY={sys.executable}"
