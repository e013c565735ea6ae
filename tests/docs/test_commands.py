"""Every command in the documentation is one that `apc` or make takes: its path, options, values and arguments."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from enum import EnumType
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_origin

import pytest
from pydantic import TypeAdapter, ValidationError
from tests.support.reference.commands import whole_command

from .test_links import ROOT, pages

USAGE = {ROOT / "docs/reference/cli.md", ROOT / "CHANGELOG.md"}
"""The first shows usages with brackets and is generated from the commands; the second tells of former releases."""
NO_COMMANDS = {
    "apc body",  # strings that hashes begin with
    "apc digest",
    "make deploy",  # of a project that `apc new` wrote
}
FENCE = re.compile(r"^ *```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^ *```", re.DOTALL | re.MULTILINE)
LANGUAGES = {"", "bash", "sh", "text", "console"}
INLINE = re.compile(r"(?<!`)`(?P<command>(?:apc|make) [^`]+)`(?!`)")
BEGINS = re.compile(r"^\s*(?:\$ )?(?:\w+=\S* )*(?P<command>(?:apc|make) (?!\w+: ).*)$")
"""`apc demo: …` is what a command prints."""
END = re.compile(r"\s*(?:\|\||[|&;<>]|  #|\s#\s).*$")
OPTIONAL = re.compile(r"\[[^\]]*\]")
PLACEHOLDER = re.compile(r"[A-Z_]+[=…\w]*|…|RUN")


def blocks(text: str) -> Iterator[str]:
    """Yield the commands in the code blocks of a page, each as its line has it up to a comment or a pipe."""
    for block in FENCE.finditer(text):
        if block["language"] in LANGUAGES:
            lines = block["text"].replace("\\\n", " ").splitlines()
            yield from (END.sub("", found["command"]) for line in lines if (found := BEGINS.match(line)))


def inline(text: str) -> Iterator[str]:
    """Yield the commands in the sentences and tables of a page; they may leave arguments out."""
    for found in INLINE.finditer(FENCE.sub("", text)):
        command = END.sub("", OPTIONAL.sub("", " ".join(found["command"].replace("\\|", "|").split())))
        if command not in NO_COMMANDS:
            yield command


@cache
def apc() -> Any:
    """Return the command `apc`, with every group."""
    return whole_command()


@cache
def targets() -> frozenset[str]:
    """Return the targets of the Makefile."""
    return frozenset(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def problem_of(line: str, *, is_whole: bool) -> str | None:
    """Return why `apc` or make would refuse a command; None when it would not, or when it elides something."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        return str(error)
    if words[0] == "make":
        unknown = [word for word in words[1:] if "=" not in word and word not in targets() and word.islower()]
        return f"the Makefile has no {unknown[0]}" if unknown else None
    said = [word for before, word in pairwise(words) if word != "…" or before.startswith("--")]
    return _of_apc(said, is_whole=is_whole and "…" not in line)


def _of_apc(words: list[str], *, is_whole: bool) -> str | None:
    command, path = apc(), ["apc"]
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return None if PLACEHOLDER.fullmatch(words[0]) else f"{' '.join(path)} has no {words[0]}"
        path.append(words.pop(0))
        command = command.commands[path[-1]]
    if hasattr(command, "commands"):
        return "it names a group alone" if is_whole and not words else None
    context = command.context_class(command, info_name=" ".join(path))
    try:
        given, left, _ = command.make_parser(context).parse_args(args=words)
    except Exception as error:  # of click, or of the copy of it that Typer has
        said = getattr(error, "message", None) or str(error)
        return None if "requires an argument" in said and not is_whole else said
    if left:
        return f"it takes no {left[0]!r}"
    missing = [one.name for one in command.params if one.required and not _is_given(given.get(one.name))]
    if missing and is_whole:
        return f"it needs {missing[0]}"
    return next(filter(None, (_value_problem(one, given.get(one.name)) for one in command.params)), None)


def _is_given(value: Any) -> bool:
    return isinstance(value, str | list | tuple | bool) and value != ()


def _value_problem(parameter: Any, value: Any) -> str | None:
    """Return why a value that is no placeholder is not one of the parameter's: a number or a word of a list."""
    kind = parameter.type_descriptor.annotation
    if not isinstance(value, str) or PLACEHOLDER.fullmatch(value):
        return None
    if not (kind in (int, float) or isinstance(kind, EnumType) or get_origin(kind) is Literal):
        return None
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        return f"{parameter.name}: {error.errors()[0]['msg']}"
    return None


def test_every_command_is_taken() -> None:
    refused = {}
    for page in set(pages()) - USAGE:
        text = page.read_text(encoding="utf-8")
        for line, is_whole in [*((one, True) for one in blocks(text)), *((one, False) for one in inline(text))]:
            if (problem := problem_of(line, is_whole=is_whole)) is not None:
                refused[f"{page.relative_to(ROOT)}: {line}"] = problem
    assert refused == {}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("apc session wait SESSION --timeout 60", None),
        ("apc session wait", "it needs session_id"),
        ("apc sesion wait SESSION", "apc has no sesion"),
        ("apc session wait SESSION --patience 3", "No such option"),
        ("apc session wait SESSION OTHER", "it takes no 'OTHER'"),
        ("apc packet trace --limit many", "valid integer"),
        ("make demo", None),
        ("make coffee", "the Makefile has no coffee"),
    ],
)
def test_a_command_that_is_not_taken_is_found(line: str, problem: str | None) -> None:
    found = problem_of(line, is_whole=True)
    assert (found is None) if problem is None else (found is not None and problem in found)


def test_commands_are_found() -> None:
    text = "Run `apc doctor` or\n\n```\nexport A=b\nA=b apc up &   # all\napc new x && cd x\n```\n"
    assert list(blocks(text)) == ["apc up", "apc new x"]
    assert list(inline(text)) == ["apc doctor"]


def test_the_repository_has_pages_with_commands() -> None:
    assert sum(len(list(blocks(Path(page).read_text(encoding="utf-8")))) for page in pages()) > 100


def test_make_says_what_each_target_is_for() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert {"demo", "test"} <= {line.split()[0] for line in shown.splitlines() if line.strip()}
