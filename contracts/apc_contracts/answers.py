"""The fields of a person's answer: what schema a question may bring along, whether an answer fits it, how it is typed.

Every agent may ask, so such a schema is smaller than a registered one: reading and compiling it costs the gate little.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import cache, cached_property, lru_cache
from typing import Any, Final
from uuid import UUID

import orjson
from pydantic import TypeAdapter, ValidationError

from apc_contracts.content import ordered_fields, resolved
from apc_contracts.errors import SchemaUnusable
from apc_contracts.schemas import ContentFault, RegisteredSchema, check_document, compiled, register_schema

MAX_ANSWER_SCHEMA_BYTES: Final = 8 * 1024
MAX_ANSWER_OBJECTS: Final = 300
"""JSON objects in one schema: each field, definition and alternative is one."""
MAX_ANSWER_PATTERNS: Final = 16
"""Patterns of one schema, and characters of all of them together: the engine compiles each."""
MAX_ANSWER_PATTERN_TEXT: Final = 512
MAX_ANSWER_BYTES: Final = 64 * 1024
MAX_ANSWER_VALUES: Final = 2_000
DECIMAL: Final = "decimal"
"""The format of a number that is written as text, such as an amount of money: no digit of it is lost."""
REMEDY: Final = "correct the field; `apc approval show` prints the fields that the question asks for"

_NAME = "the question's schema"
_LONGEST_NAME = 100
_DECIMAL = re.compile(r"[+-]?(\d{1,64}(\.\d{0,64})?|\.\d{1,64})")


def read_decimal(text: str) -> Decimal | None:
    """Return the number in a text such as `12.50`; None for what is none, without an exponent."""
    if not _DECIMAL.fullmatch(text):
        return None
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def _reads(kind: Any, begins: str) -> Callable[[str], bool]:
    """Return whether a text is read as this type, as the model of the answer reads it; numbers are no times here."""
    shape, adapter_of = re.compile(begins), cache(TypeAdapter[Any])  # made when the first text is read

    def is_read(text: str) -> bool:
        if shape.match(text) is None:
            return False
        try:
            adapter_of(kind).validate_python(text)
        except (ValidationError, ValueError, OverflowError):
            return False
        return True

    return is_read


FORMATS: Final[dict[str, Callable[[str], bool]]] = {
    DECIMAL: lambda text: read_decimal(text) is not None,
    "date": _reads(date, r"\d{4}-\d\d-\d\d$"),
    "date-time": _reads(datetime, r"\d{4}-\d\d-\d\d[Tt ]"),
    "time": _reads(time, r"\d\d:\d\d"),
    "duration": _reads(timedelta, r"[+-]?P"),
    "uuid": _reads(UUID, r"[0-9a-fA-F]{8}-"),
}
"""Formats of texts that are looked at, beside those that the engine knows: a date that is none must not be answered."""


@dataclass(frozen=True)
class AnswerSchema(RegisteredSchema):
    """The schema of one question's answer. Formats count, and the bounds of decimals among its fields."""

    @cached_property
    def _validator(self) -> Any:
        return compiled(dict(self.document) if self._blunt_document is None else self._blunt_document, FORMATS)

    def fault(self, content: Mapping[str, Any], path: str) -> ContentFault | None:
        """Return the first place where the answer does not fit, or is too large; `path` is its own in the packet."""
        if _is_large(content):
            size = f"{MAX_ANSWER_BYTES // 1024} KiB and {MAX_ANSWER_VALUES:,} values"
            return self._fault(path, f"an answer has at most {size}: shorten it, or give a reference")
        for name in self.document.get("required", ()):
            if name not in content:
                return self._fault(f"{path}.{name}", "this field is needed and missing")
        for name in sorted(content):
            if self.document.get("additionalProperties") is False and name not in self._fields:
                return self._fault(f"{path}.{name[:_LONGEST_NAME]}", "the question asks for no such field")
        found = super().fault(content, path)
        if found is not None:
            return self._fault(found.path, found.message.removesuffix(f" ({_NAME})"))
        for name, said in _out_of_bounds(self._fields, content):
            return self._fault(f"{path}.{name}", said)
        return None

    @property
    def _fields(self) -> Mapping[str, Any]:
        fields = self.document.get("properties")
        return fields if isinstance(fields, Mapping) else {}

    def _fault(self, path: str, message: str) -> ContentFault:
        return ContentFault(path, message, self.hash.hex())


def check_answer_schema(document: Mapping[str, Any]) -> AnswerSchema:
    """Return the schema of a question's answer, with the order of its fields.

    Raises:
        SchemaUnusable: what is wrong with the document, and where.
    """
    try:
        body = orjson.dumps(document)
    except TypeError as error:
        raise SchemaUnusable("$", f"no plain JSON ({error}): use numbers and texts that JSON holds") from error
    return _checked(body)


def answer_schema(body: bytes) -> AnswerSchema:
    """Return the schema of an admitted question from its JSON.

    Raises:
        SchemaUnusable: an earlier release took it.
    """
    return _checked(body)


@lru_cache(256)
def _checked(body: bytes) -> AnswerSchema:
    if len(body) > MAX_ANSWER_SCHEMA_BYTES:
        message = f"has {len(body):,} bytes, the limit is {MAX_ANSWER_SCHEMA_BYTES:,}: ask for fewer fields"
        raise SchemaUnusable("$", message)
    document = orjson.loads(body)
    _check_parts(document)
    check_document(document)
    compiled(document, FORMATS)
    schema = register_schema(_NAME, document)
    return AnswerSchema(schema.schema_id, schema.document, schema.hash)


def _check_parts(document: Any) -> None:
    """Raise SchemaUnusable for more objects or patterns than the engine compiles in a few milliseconds."""
    objects, patterns = 0, list[str]()
    pending = [document]
    for one in pending:
        if isinstance(one, dict):
            objects += 1
            patterns += [one["pattern"]] if isinstance(one.get("pattern"), str) else []
            patterns += one["patternProperties"] if isinstance(one.get("patternProperties"), dict) else []
            pending += one.values()
        elif isinstance(one, list):
            pending += one
    size = sum(map(len, patterns))
    if objects > MAX_ANSWER_OBJECTS:
        message = f"has {objects} objects, the limit is {MAX_ANSWER_OBJECTS}: ask for fewer fields"
        raise SchemaUnusable("$", message)
    if len(patterns) > MAX_ANSWER_PATTERNS or size > MAX_ANSWER_PATTERN_TEXT:
        limits = f"{MAX_ANSWER_PATTERNS} and {MAX_ANSWER_PATTERN_TEXT}"
        message = f"has {len(patterns)} patterns with {size} characters, the limits are {limits}: use `enum`, or fewer"
        raise SchemaUnusable("$", message)


def _is_large(content: Mapping[str, Any]) -> bool:
    values = 0
    pending: list[Any] = [content]
    for one in pending:
        values += 1
        if isinstance(one, Mapping):
            pending += one.values()
        elif isinstance(one, list | tuple):
            pending += one
        if len(pending) > MAX_ANSWER_VALUES:
            return True
    return len(orjson.dumps(content, default=dict)) > MAX_ANSWER_BYTES


_BOUNDS: Final[Mapping[str, tuple[Callable[[Decimal, Decimal], bool], str]]] = {
    "minimum": (Decimal.__ge__, "at least"),
    "exclusiveMinimum": (Decimal.__gt__, "more than"),
    "maximum": (Decimal.__le__, "at most"),
    "exclusiveMaximum": (Decimal.__lt__, "less than"),
}


def _out_of_bounds(fields: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the decimals among the fields that break a bound: JSON Schema bounds numbers, and these are texts."""
    for name, field in fields.items():
        number = read_decimal(content[name]) if isinstance(content.get(name), str) else None
        if number is None or not isinstance(field, Mapping):
            continue
        alternatives = field.get("anyOf")
        for one in (field, *(alternatives if isinstance(alternatives, list | tuple) else ())):
            if not isinstance(one, Mapping) or one.get("format") != DECIMAL:
                continue
            for keyword, (holds, words) in _BOUNDS.items():
                bound = one.get(keyword)
                if isinstance(bound, int | float) and not holds(number, Decimal(str(bound))):
                    yield name, f"this value is to be {words} {bound:.12g}"


# The fields for those who type them: their names and kinds in words, and what a typed text means.


@dataclass(frozen=True, slots=True)
class AnswerField:
    """A field that a question asks for.

    Attributes:
        name: as the answer has it.
        about: title and description of the schema; "" without both.
        kind: text, integer, number, decimal, boolean, choice, texts (a list), JSON, or a time and how it is written.
        choices: the values of a choice.
        is_needed: whether an answer must have it.
    """

    name: str
    about: str
    kind: str
    choices: tuple[Any, ...]
    is_needed: bool

    @property
    def words(self) -> str:
        """One line for a terminal, which is not made safe: `amount (decimal, needed): what is paid back`."""
        kind = f"one of {', '.join(map(str, self.choices))}" if self.kind == "choice" else self.kind
        said = f"{self.name} ({kind}, {'needed' if self.is_needed else 'may be left out'})"
        return f"{said}: {self.about}" if self.about else said

    def read(self, text: str) -> Any:
        """Return what somebody typed as JSON. Raises ValueError, which says what the field takes."""
        try:
            return self._value(text.strip())
        except ValueError:
            raise ValueError(f"{self.name}: {text[:_LONGEST_NAME]!r} is no {self.words}") from None

    def _value(self, text: str) -> Any:
        match self.kind:
            case "choice":
                return self.choices[[str(one) for one in self.choices].index(text)]
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case "boolean":
                return {"yes": True, "true": True, "no": False, "false": False}.get(text.lower(), text)
            case "texts":
                return [text]
            case "JSON":
                return orjson.loads(text)
            case _:
                return text


def answer_fields(schema: Mapping[str, Any]) -> list[AnswerField]:
    """Return the fields of a question's schema in their order."""
    known = schema.get("properties")
    known = known if isinstance(known, Mapping) else {}
    return [
        _field(name, field, schema, name in schema.get("required", ()))
        for name, _, field in ordered_fields(known, schema)
    ]


def _field(name: str, field: Mapping[str, Any], root: Mapping[str, Any], is_needed: bool) -> AnswerField:
    inner = resolved(field, root)
    said = (field.get("title"), inner.get("description") or field.get("description"))
    about = ": ".join(one for one in said if isinstance(one, str) and one)
    choices = inner.get("enum")
    items = resolved(inner["items"], root) if isinstance(inner.get("items"), Mapping) else {}
    kind = _KINDS.get(str(inner.get("type")), "JSON")
    if isinstance(choices, list | tuple) and choices:
        kind = "choice"
    elif kind == "text" and inner.get("format") in (DECIMAL, *_TIMES):
        kind = _TIMES.get(str(inner["format"]), DECIMAL)
    elif inner.get("type") == "array" and items.get("type") == "string" and "enum" not in items:
        kind = "texts"
    return AnswerField(name, about, kind, tuple(choices) if kind == "choice" and choices else (), is_needed)


_KINDS: Final = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}
_TIMES: Final = {"date": "date as 2026-12-31", "date-time": "time as 2026-12-31T12:00:00Z", "time": "time as 12:00"}


def read_fields(schema: Mapping[str, Any], given: Sequence[str]) -> dict[str, Any]:
    """Return the answer that `name=value` texts give; a list of texts takes several. Raises ValueError."""
    fields, answer = {one.name: one for one in answer_fields(schema)}, dict[str, Any]()
    for one in given:
        name, sign, text = one.partition("=")
        if not sign or name not in fields:
            known = "; ".join(field.words for field in fields.values())
            raise ValueError(
                f"{one[:_LONGEST_NAME]!r} names no field: write name=value. The question asks for: {known}"
            )
        if name in answer and fields[name].kind != "texts":
            raise ValueError(f"{name} is given twice: give it once")
        value = fields[name].read(text)
        answer[name] = [*answer[name], *value] if name in answer else value
    return answer
