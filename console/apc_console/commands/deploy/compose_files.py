"""The compose file of the bus and what it mounts: an installed package carries them."""

import os
from importlib.resources import files
from pathlib import Path

from apc_console.errors import InputUnusable

COMPOSE, OVERRIDE = Path("docker-compose.yml"), Path("docker-compose.override.yml")
FILES = (
    COMPOSE,
    Path("deploy/agent.yml"),
    Path("deploy/postgres-users.sh"),
    Path("deploy/rabbitmq.conf"),
    Path("deploy/rabbitmq-advanced.config"),
    Path("deploy/rabbitmq-management.conf"),
)
"""What a project needs beside its own override; the wheel has them (pyproject.toml)."""


def files_of_folder(folder: Path) -> list[Path]:
    """Return the compose files that `docker compose` reads in a folder without being told."""
    return [folder / name for name in (COMPOSE, OVERRIDE) if (folder / name).exists() or name == COMPOSE]


def write_files(folder: Path) -> list[Path]:
    """Write the compose file and what it mounts, unless the folder has a compose file; return what was written.

    Raises:
        InputUnusable: the folder cannot be written.
    """
    if os.path.lexists(folder / COMPOSE):
        return []
    written = []
    for name in reversed(FILES):  # the compose file last: a call that was cut off goes on
        target = folder / name
        if os.path.lexists(target):
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as opened:
                opened.write((_source() / name).read_bytes())
                # Users of containers read it.
                os.fchmod(opened.fileno(), 0o755 if target.suffix == ".sh" else 0o644)
        except OSError as error:
            raise InputUnusable(f"cannot write {target}: {error.strerror}") from error
        written.append(target)
    return written


def _source() -> Path:
    packaged = Path(str(files("apc_console") / "deployment"))
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[4]
