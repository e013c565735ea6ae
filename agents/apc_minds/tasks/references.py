"""`${{variables.x}}` and `${{results.action_id.path}}`: found and substituted as data, never evaluated.

A text that is one reference becomes the value itself, with its type. In a longer text a string is inserted as it
is and any other value as its JSON. What was inserted is not looked at again. `$${{` writes a literal `${{`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from pydantic import JsonValue

from apc_minds.tools import ReferenceUnknown

_MARK = re.compile(r"\$\$\{\{|\$\{\{(?P<inside>(?:(?!\}\}).)*)(?P<end>\}\})?", re.DOTALL)
_PATH = re.compile(r"(?P<root>variables|results)(?P<steps>(?:\.[^\s.{}$]+)+)")
_INDEX = re.compile(r"0|[1-9][0-9]*")
_FORM = "write ${{variables.name}} or ${{results.action_id.path}}, or $${{ for the characters themselves"

Resolve = Callable[["Reference"], JsonValue]


@dataclass(frozen=True, slots=True)
class Reference:
    """Where a value is to come from: `head` is the variable or the action_id, `path` leads on inside its value."""

    root: Literal["variables", "results"]
    head: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join((self.root, self.head, *self.path))

    def follow(self, value: JsonValue) -> JsonValue:
        """Return what the path leads to inside the value of the head.

        Raises:
            ReferenceUnknown: a step that is not there.
        """
        reached = f"{self.root}.{self.head}"
        for step in self.path:
            value = self._step(value, step, reached)
            reached = f"{reached}.{step}"
        return value

    def _step(self, value: JsonValue, step: str, reached: str) -> JsonValue:
        if isinstance(value, Mapping):
            if step in value:
                return value[step]
            known = ", ".join(sorted(value)[:10]) or "none"
            raise ReferenceUnknown(str(self), f"{reached} has no {step!r}; its names are {known}")
        if isinstance(value, list):
            if _INDEX.fullmatch(step) and len(step) < 10 and int(step) < len(value):
                return value[int(step)]
            raise ReferenceUnknown(str(self), f"{reached} is a list of {len(value)}, counted from 0")
        raise ReferenceUnknown(str(self), f"{reached} is {_kind(value)} and has nothing inside")


def references_in(value: JsonValue) -> Iterator[Reference]:
    """Yield every reference in a value.

    Raises:
        ReferenceUnknown: a `${{` that is no reference.
    """
    if isinstance(value, str):
        yield from (reference for reference in map(_reference, _MARK.finditer(value)) if reference is not None)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from references_in(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from references_in(one)


def substitute(value: JsonValue, resolve: Resolve) -> Any:
    """Return the value with every reference replaced by what `resolve` gives.

    Raises as `references_in` and `resolve`.
    """
    if isinstance(value, str):
        return _substitute_text(value, resolve)
    if isinstance(value, Mapping):
        return {key: substitute(one, resolve) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [substitute(one, resolve) for one in value]
    return value


def lookup(
    variables: Mapping[str, JsonValue], results: Mapping[str, JsonValue], *, unfinished: str = "no such action"
) -> Resolve:
    """Build what resolves references from these; `unfinished` is the message for a result that is not there."""

    def resolve(reference: Reference) -> JsonValue:
        known = variables if reference.root == "variables" else results
        if reference.head in known:
            return reference.follow(known[reference.head])
        names = ", ".join(sorted(known)[:10]) or "none"
        what = "no such variable" if reference.root == "variables" else unfinished
        raise ReferenceUnknown(str(reference), f"{what}; known are {names}")

    return resolve


def _substitute_text(text: str, resolve: Resolve) -> JsonValue:
    whole = _MARK.fullmatch(text)
    if whole is not None:
        reference = _reference(whole)
        if reference is not None:
            return resolve(reference)

    def inserted(mark: re.Match[str]) -> str:
        reference = _reference(mark)
        if reference is None:
            return "${{"
        value = resolve(reference)
        return value if isinstance(value, str) else orjson.dumps(value).decode()

    return _MARK.sub(inserted, text)


def _reference(mark: re.Match[str]) -> Reference | None:
    """Return the reference; None for the escape `$${{`."""
    inside = mark["inside"]
    if inside is None:
        return None
    path = _PATH.fullmatch(inside.strip())
    if path is None or mark["end"] is None:
        raise ReferenceUnknown(inside.strip()[:100], _FORM)
    head, *rest = path["steps"][1:].split(".")
    return Reference("variables" if path["root"] == "variables" else "results", head, tuple(rest))


def _kind(value: JsonValue) -> str:
    return "null" if value is None else f"a {type(value).__name__}"
