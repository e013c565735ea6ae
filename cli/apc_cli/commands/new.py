"""`apc new`: a project with a team in it, written into a folder that is new or empty."""

import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from keyword import iskeyword, issoftkeyword
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from apc_cli import __version__
from apc_cli.errors import InputUnusable
from apc_cli.output.terminal import echo

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 40
_SUFFIX = ".template"


class TeamKind(StrEnum):
    """What the rules of a new team are about."""

    REVIEW = "review"
    APPROVAL = "approval"


_WORDS: Mapping[TeamKind, Mapping[str, str]] = {
    TeamKind.REVIEW: {"ABOUT": "a result is what the editor has returned", "PERSON": "", "ASKS": "", "DEPLOYED": ""},
    TeamKind.APPROVAL: {
        "ABOUT": "a result is what the editor has returned and a person has approved",
        "PERSON": " --person alice:lead",
        "ASKS": ", after alice was asked at this terminal",
        "DEPLOYED": "\n| `docker compose run --rm operator agent add alice --person --role lead --via operator` "
        "| after `make deploy`: alice may answer, with `approval list` and `approval approve QUESTION` in the place of "
        "`agent add …` |",
    },
}
"""What the templates say of each kind, beside its own."""


def write_project(name: str, parent: Path, kind: TeamKind = TeamKind.REVIEW) -> Path:
    """Write a project into the folder of this name and return its path.

    Raises:
        InputUnusable: the name cannot name a folder and a module, or the folder is not empty or cannot be written.
    """
    module = _module_of(name)
    folder = parent / name
    try:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise InputUnusable(f"{folder} is no folder: choose another name")
        if folder.exists() and any(folder.iterdir()):
            raise InputUnusable(f"{folder} is not empty: choose another name, or empty it first")
        for place, text in _rendered(name, module, kind):
            path = folder / place
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise InputUnusable(f"cannot write {folder}: {error.strerror}") from error
    return folder


def _module_of(name: str) -> str:
    """Return the name of the project's Python package. Raises InputUnusable."""
    if len(name) > _LONGEST or not _NAME.fullmatch(name):
        raise InputUnusable(
            f"{name!r} cannot name a project: write 1 to {_LONGEST} lower-case letters and digits with single hyphens "
            "between them, beginning with a letter, like my-team"
        )
    module = name.replace("-", "_")
    if iskeyword(module) or issoftkeyword(module) or module in sys.stdlib_module_names or _is_installed(module):
        raise InputUnusable(f"there is a Python module {module} already: choose another name, like {name}-team")
    return module


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # a module that runs as the program
        return True


def _rendered(name: str, module: str, kind: TeamKind) -> Iterator[tuple[PurePosixPath, str]]:
    """Yield the place and the text of each file."""
    known = {"NAME": name, "MODULE": module, "VERSION": __version__, **_WORDS[kind]}
    project = files("apc_cli") / "project"
    for folder in (project / "template", project / "kinds" / kind):
        for place, file in _templates(folder, PurePosixPath()):
            named = PurePosixPath(*(_named(part, module) for part in place.parts))
            text = file.read_text(encoding="utf-8")
            yield named, re.sub(f"@({'|'.join(known)})@", lambda match: known[match[1]], text)


def _templates(folder: Traversable, place: PurePosixPath) -> Iterator[tuple[PurePosixPath, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda one: one.name):
        if entry.is_dir():
            yield from _templates(entry, place / entry.name)
        elif entry.name.endswith(_SUFFIX):
            yield place / entry.name, entry


def _named(part: str, module: str) -> str:
    """Return the name of a file or folder in the project: hidden ones are not hidden among the templates."""
    part = module if part == "module" else part.removesuffix(_SUFFIX)
    return f".{part.removeprefix('dot.')}" if part.startswith("dot.") else part


def new(
    name: Annotated[str, typer.Argument(help="Such as my-team: a new or empty folder.")],
    kind: Annotated[
        TeamKind | None,
        typer.Option(
            help="Its rules: an agent reviews the result, or a person approves it too. Asked for at a terminal, else "
            "review.",
        ),
    ] = None,
) -> None:
    """Write a project: a team of two agents, its rules, tests, Makefile, Dockerfile, compose override and CI."""

    folder = write_project(name, Path(), kind or _asked_kind())
    echo(f"{folder}: a team of two agents, and its rules. Next:")
    echo(f"  cd {folder}")
    echo(f"  make test{_interpreter()}")
    echo(f"  make run{_interpreter()}")


def _asked_kind() -> TeamKind:
    """Ask which kind of team it is; without a terminal it is the default."""
    if not sys.stdin.isatty():
        return TeamKind.REVIEW
    question = "review = an agent reviews the result, approval = a person approves it too\nWhich kind of team?"
    kind: TeamKind = typer.prompt(question, default=TeamKind.REVIEW.value, value_proc=_kind_of, err=True)
    return kind


def _kind_of(answer: str) -> TeamKind:
    if answer not in list(TeamKind):
        raise typer.BadParameter(f"answer {' or '.join(TeamKind)}")
    return TeamKind(answer)


def _interpreter() -> str:
    """Return the argument that names this Python, unless `python3` starts it."""
    program = shutil.which("python3")
    is_active = program is not None and Path(program).parent.resolve() == Path(sys.executable).parent.resolve()
    return "" if is_active else f" PY={sys.executable}"
