"""YAML 1.2 and JSON as plain values: no tags, no anchors, no doubled keys, nothing that YAML has cut."""

import json
import re
from collections.abc import Sequence
from typing import Any, Final
from unicodedata import normalize

import yaml

from apc_contracts.errors import ContractInvalid

QUOTES: Final = "put it in quotes: '…'"
_MAX_DEPTH = 16

_PLAIN: Sequence[tuple[re.Pattern[str], Any]] = (
    (re.compile(r"true|false"), lambda text: text == "true"),
    (re.compile(r"null|~|"), lambda text: None),
    (re.compile(r"[-+]?[0-9]{1,18}"), int),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?"), float),
)


class PlainReader:
    """Builds plain values from YAML's events: no tags, no anchors, no doubled keys, nothing that YAML has cut."""

    def __init__(self, text: str) -> None:
        if _is_json(text):
            text = text.replace("\t", " ")  # JSON has tabs between its values only; YAML has none there
        self._lines = text.splitlines()
        self.events: dict[str, yaml.Event] = {}
        """Place -> where its value begins."""
        self._events = yaml.parse(text, Loader=yaml.SafeLoader)
        self._event: yaml.Event = next(self._events)

    def document(self) -> Any:
        """Return the one document of the file."""
        self._take(yaml.StreamStartEvent)
        if isinstance(self._event, yaml.StreamEndEvent):
            raise ContractInvalid("$", "the file is empty: give it name, extends and rules")
        self._take(yaml.DocumentStartEvent)
        value = self._value("$", 0)
        self._take(yaml.DocumentEndEvent)
        if not isinstance(self._event, yaml.StreamEndEvent):
            raise ContractInvalid("$", "it holds several documents: write one")
        return value

    def _take(self, kind: type[yaml.Event]) -> yaml.Event:
        event = self._event
        assert isinstance(event, kind), f"{kind.__name__} is next, not {event}"
        if not isinstance(event, yaml.StreamEndEvent):
            self._event = next(self._events)
        return event

    def _value(self, place: str, depth: int) -> Any:
        event = self.events[place] = self._event
        if depth > _MAX_DEPTH:
            raise ContractInvalid(place, f"it is deeper than {_MAX_DEPTH} levels: flatten it")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise ContractInvalid(place, f"no anchors and aliases; if it begins with & or *, {QUOTES}")
        if getattr(event, "tag", None) is not None:
            raise ContractInvalid(place, f"no tags; if it begins with !, {QUOTES}")
        if isinstance(event, yaml.ScalarEvent):
            self._take(yaml.ScalarEvent)
            return self._scalar(event, place)
        if isinstance(event, yaml.SequenceStartEvent):
            self._take(yaml.SequenceStartEvent)
            items: list[Any] = []
            while not isinstance(self._event, yaml.SequenceEndEvent):
                items.append(self._value(f"{place}[{len(items)}]", depth + 1))
            self._take(yaml.SequenceEndEvent)
            return items
        return self._mapping(place, depth)

    def _mapping(self, place: str, depth: int) -> dict[str, Any]:
        self._take(yaml.MappingStartEvent)
        values: dict[str, Any] = {}
        written: set[str] = set()
        while not isinstance(self._event, yaml.MappingEndEvent):
            key = self._event
            if not isinstance(key, yaml.ScalarEvent) or key.tag is not None or key.anchor is not None:
                raise ContractInvalid(place, f"{_line(key)}a key is a plain text")
            self._take(yaml.ScalarEvent)
            inner = key.value if place == "$" else f"{place}.{key.value}"
            if key.value in values:
                raise ContractInvalid(inner, f"{_line(key)}the key stands there twice: keep one")
            if (alike := normalize("NFC", key.value)) in written:
                message = "the key stands there twice, written with other code points: keep one"
                raise ContractInvalid(inner, f"{_line(key)}{message}")
            written.add(alike)
            values[key.value] = self._value(inner, depth + 1)
        self._take(yaml.MappingEndEvent)
        return values

    def _scalar(self, event: yaml.ScalarEvent, place: str) -> Any:
        if event.style is not None:
            return event.value
        end = event.end_mark
        rest = self._lines[end.line][end.column :] if end is not None and end.line < len(self._lines) else ""
        if place.endswith((".require", ".when")) and rest.lstrip().startswith("#"):
            raise ContractInvalid(place, f"{_line(event)}YAML cuts it at #: {QUOTES}")
        for pattern, read in _PLAIN:
            if pattern.fullmatch(event.value):
                return read(event.value)
        return event.value


def _is_json(text: str) -> bool:
    try:
        return text.lstrip().startswith("{") and isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _line(event: yaml.Event) -> str:
    """Return where an event ends, for an error."""
    return "" if event.end_mark is None else f"line {event.end_mark.line + 1}: "


def read_plain(body: bytes) -> Any:
    """Return the plain values of a YAML 1.2 or JSON text. Raises ContractInvalid, with place or line."""
    try:
        return PlainReader(body.decode("utf-8-sig")).document()
    except UnicodeDecodeError as error:
        raise ContractInvalid("$", "the file is not UTF-8: save it as such") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        said = getattr(error, "problem", None) or "it cannot be read"
        raise ContractInvalid("$", f"{line}{said}. If it is an expression, {QUOTES}") from error
