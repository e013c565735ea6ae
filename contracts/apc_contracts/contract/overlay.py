"""The short file that a team writes over a contract, and how it is written out into a whole one.

`read_overlay` reads YAML or JSON, `write_out` merges it with its parent: an overlay only tightens. What comes out is an
ordinary contract file with the section `team`; it is registered, logged and judged by, so that a later parent changes
nothing. Source: docs/reference/rules.md.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn, Self

import yaml
from pydantic import BeforeValidator, Field, Strict, StringConstraints, ValidationError, model_validator

from apc_contracts.contract.collection import DEPLOYMENT_WIDE
from apc_contracts.contract.contract import (
    MAX_BYTES,
    Contract,
    check_deployment,
    contract_from_bytes,
    read_contract_file,
)
from apc_contracts.contract.expressions import BUDGETS, EFFECTS, MAX_ITEMS, MAX_TEXT, Expression, FieldType, Kind
from apc_contracts.contract.file import (
    ContentPath,
    ContractFile,
    CounterDeclaration,
    CounterKey,
    GuardText,
    KeptFields,
    Mode,
    Name,
    RuleDeclaration,
    Section,
    Subject,
    TeamRules,
    Truth,
    Word,
    refusal_order,
)
from apc_contracts.contract.plain_yaml import PlainReader, read_plain
from apc_contracts.contract.rules import Counter, Rule, Team, build_team
from apc_contracts.contract_model import Id, SchemaId, Time
from apc_contracts.errors import ContractInvalid
from apc_contracts.vocabulary import PacketType, Right

MAX_CHAIN: Final = 4
_MAX_DEPTH = 16
_LEVELS_OF_CONTENT = 8
_DURATION = re.compile(r"([1-9][0-9]{0,8})(s|m|h|d)")
_UNITS: Mapping[str, timedelta] = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}


def _subjects(value: Any) -> Any:
    """Return the long form of `for`: a schema's name is {schema: NAME}, and one subject a list of one."""
    listed = value if isinstance(value, list) else [value]
    return [{"schema": one} if isinstance(one, str) else one for one in listed]


def _milliseconds(value: Any) -> Any:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("a time is a whole number and s, m, h or d, like 90s, 30m, 1h, 2d")
    return int(match.group(1)) * int(_UNITS[match.group(2)].total_seconds() * 1000)


def _counter_key(value: Any) -> Any:
    if value in ("session", "sender", "recipient") or (isinstance(value, str) and value.startswith("content.")):
        return value
    raise ValueError("a counter counts by session, sender, recipient or a field like content.payee")


# Numbers as they are meant: pydantic would take "1", 1_000 (a text in YAML 1.2) and true for one.
_Whole = Annotated[int, Strict()]
_Number = Annotated[float, Strict()]
_REMEDIES: Mapping[str, str] = {
    "int_type": "write a whole number in digits alone, like 10000, without quotes",
    "float_type": "write a number in digits, like 0.5, without quotes",
    "bool_type": "write true or false, without quotes",
}
"""Error of pydantic -> what to write."""
_Written = SchemaId | Subject
Subjects = Annotated[
    tuple[Subject, ...],
    Field(min_length=1, max_length=32),
    BeforeValidator(_subjects, json_schema_input_type=_Written | tuple[_Written, ...]),
]
_Duration = Annotated[str, StringConstraints(pattern=f"^{_DURATION.pattern}$")]


class OverlayRule(RuleDeclaration):
    """A rule as a team writes it: `for` may be one schema, {schema, type}, or a list of these."""

    for_: Subjects = Field(alias="for")


class OverlayCounter(Section):
    """A counter as a team writes it; `within` is a time like 1h."""

    for_: Subjects = Field(alias="for")
    when: GuardText | None = None
    by: Annotated[CounterKey, BeforeValidator(_counter_key, json_schema_input_type=CounterKey)] = "session"
    add: ContentPath | None = None
    within: Annotated[int, BeforeValidator(_milliseconds, json_schema_input_type=_Duration)] | None = None


# Tests of rules: `apc_contracts.replay.rule_tests` runs them.

MONDAY_NOON: Final = datetime(2026, 1, 5, 12, tzinfo=UTC)
"""When a test happens that names no time."""
MAX_TESTS: Final = 200
_MAX_PACKETS = 64


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _written_time(value: Any) -> Any:
    if not isinstance(value, str | datetime):
        raise ValueError("a time is a text with its zone, like 2026-01-05T12:00:00Z")
    return value


_Moment = Annotated[Time, BeforeValidator(_written_time, json_schema_input_type=Time)]


_TYPED = (PacketType.MESSAGE, PacketType.DECISION)


class OverlayPacket(Section):
    """A packet of a test: `schema` and `content`, or the `payload` of another type. A sender's role is else its id."""

    schema_: SchemaId | None = Field(default=None, alias="schema")
    from_: Id = Field(alias="from")
    role: Word | None = None
    swarm: Id | None = None
    to: Annotated[tuple[Id, ...], BeforeValidator(_listed, json_schema_input_type=Id | tuple[Id, ...])] = ()
    type: PacketType = PacketType.MESSAGE
    content: dict[str, Any] = Field(default_factory=dict)
    payload: dict[str, Any] | None = None
    """Of a type that is neither MESSAGE nor DECISION: what stands in the packet."""
    confidence: Annotated[_Number, Field(ge=0, le=1)] = 1.0
    at: _Moment | None = None
    rights: tuple[Right, ...] = ()
    retracted: Truth = False

    @model_validator(mode="after")
    def _has_one_content(self) -> Self:
        if self.type in _TYPED and (self.schema_ is None or self.payload is not None):
            raise ValueError(f"a {self.type} has schema and content, and no payload")
        if self.type not in _TYPED and (self.payload is None or self.schema_ is not None or self.content):
            raise ValueError(f"a {self.type} has a payload, and neither schema nor content")
        return self


class OverlayApproval(Section):
    """A person's answer to the sender's question about exactly this content, or about another `content`."""

    by: Id
    role: Word
    approved: Truth = True
    in_time: Truth = True
    content: dict[str, Any] | None = None


class JudgedPacket(OverlayPacket):
    """The packet that a test judges, what it cites, and who approved it."""

    evidence: Annotated[tuple[OverlayPacket, ...], Field(max_length=_MAX_PACKETS)] = ()
    approvals: Annotated[tuple[OverlayApproval, ...], Field(max_length=_MAX_PACKETS)] = ()


class OverlaySession(Section):
    """The session in which a test happens."""

    state: Word | None = None
    round: Annotated[_Whole, Field(ge=1)] = 1
    age_s: Annotated[_Number, Field(ge=0)] = 3600
    budgets: dict[Literal[BUDGETS], _Number] = Field(default_factory=dict)  # type: ignore[valid-type]
    spent: dict[Literal[BUDGETS], _Number] = Field(default_factory=dict)  # type: ignore[valid-type]
    effects: dict[str, Literal[EFFECTS]] = Field(default_factory=dict)  # type: ignore[valid-type]


class OverlayTest(Section):
    """What the rules say of one packet: `refused` or `warned` by the rule of this name, or `accepted`."""

    name: str | None = None
    packet: JudgedPacket
    agents: dict[Id, Word] = Field(default_factory=dict)
    """The roles of recipients and others; without one an agent's role is its id."""
    before: Annotated[tuple[OverlayPacket, ...], Field(max_length=_MAX_PACKETS)] = ()
    """Packets that were accepted earlier, and counted."""
    at: _Moment = MONDAY_NOON
    session: OverlaySession = OverlaySession()
    refused: str | None = None
    """The rule, or the code of another refusal."""
    warned: str | None = None
    accepted: Literal[True] | None = None

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if sum(one is not None for one in (self.refused, self.warned, self.accepted)) != 1:
            raise ValueError("a test says one of refused: RULE, warned: RULE, accepted: true")
        return self


class Overlay(Section):
    """The short file. `tests` are run by `apc contract test`."""

    schema_: str | None = Field(default=None, alias="$schema")
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")]
    extends: Word
    only: tuple[SchemaId, ...] | None = None
    without: tuple[PacketType, ...] = ()
    keep: dict[SchemaId, KeptFields] = Field(default_factory=dict)
    counters: dict[Name, OverlayCounter] = Field(default_factory=dict)
    roles: tuple[Word, ...] | None = None
    zone: Word | None = None
    rules: tuple[OverlayRule, ...] = ()
    session: dict[str, _Whole] = Field(default_factory=dict)
    limits: dict[str, _Whole] = Field(default_factory=dict)
    required: dict[str, tuple[PacketType, ...]] = Field(default_factory=dict)
    verification: dict[str, Mode] = Field(default_factory=dict)
    drift_checks: dict[str, Mode] = Field(default_factory=dict)
    tests: Annotated[tuple[OverlayTest, ...], Field(max_length=MAX_TESTS)] = ()


def overlay_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of overlays."""
    schema = Overlay.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def is_overlay(document: object) -> bool:
    """Return whether a parsed file is an overlay, and no whole contract."""
    return isinstance(document, Mapping) and "extends" in document


def read_overlay(body: bytes) -> Overlay:
    """Return the overlay in these bytes, YAML 1.2 or JSON. Raises ContractInvalid, with the place."""
    if len(body) > MAX_BYTES:
        raise ContractInvalid("$", f"it has more than {MAX_BYTES} bytes: shorten it")
    document = read_plain(body)
    if not is_overlay(document):
        raise ContractInvalid("extends", "name the contract that this file tightens: task, apc-1.0 or a registered one")
    try:
        return Overlay.model_validate(document)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        # A key that is misspelled is also one that is missing: the one that stands there says more.
        first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
        message = _REMEDIES.get(first["type"], first["msg"].removeprefix("Value error, "))
        if first["type"] == "extra_forbidden":
            name, known = str(first["loc"][-1]), sorted(_keys_beside(first["loc"]))
            close = get_close_matches(name, known, n=1)
            message = f"there is no {name!r}" + (
                f": do you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
            )
        raise ContractInvalid(place or "$", message) from error


_INNER: Mapping[str, type[Section]] = {
    "rules": OverlayRule,
    "counters": OverlayCounter,
    "for": Subject,
    "tests": OverlayTest,
    "packet": JudgedPacket,
    "before": OverlayPacket,
    "evidence": OverlayPacket,
    "approvals": OverlayApproval,
    "session": OverlaySession,
}


def _keys_beside(location: tuple[int | str, ...]) -> Iterable[str]:
    """Yield the names that may stand at this place."""
    model = next((_INNER[str(part)] for part in reversed(location[:-1]) if part in _INNER), Overlay)
    names = (info.alias or name for name, info in model.model_fields.items())
    return (name for name in names if not name.startswith("$"))


# From a file to a contract.

Parents = Callable[[str], Contract | None]
"""Returns the contract of a name."""


def load_overlay_file(
    path: Path | str, parents: Parents, schemas: Mapping[str, Mapping[str, Any]], roles: Iterable[str] | None = None
) -> Contract:
    """Return the whole contract that the overlay in a file makes of its parent, checked.

    Raises:
        ContractInvalid: it cannot be read or used; with file, place, line and column.
    """
    try:
        body = read_contract_file(Path(path))
    except OSError as error:
        raise ContractInvalid("$", f"cannot read it: {error.strerror}", str(path)) from error
    except ContractInvalid as error:
        raise ContractInvalid(error.place, error.message, str(path)) from error
    return load_overlay(body, path, parents, schemas, roles)


def load_overlay(
    body: bytes,
    path: Path | str,
    parents: Parents,
    schemas: Mapping[str, Mapping[str, Any]],
    roles: Iterable[str] | None = None,
) -> Contract:
    """Return the whole contract that these bytes of an overlay make of its parent, checked.

    Args:
        body: YAML or JSON.
        path: its file, for errors.
        parents: where `extends` is looked up.
        schemas: the registered schemas, by name and version.
        roles: the roles that are known, beside those of the overlay: another is an error. None = any will do. They
            are not written into the contract: a new agent does not change it.

    Raises:
        ContractInvalid: it cannot be used; with file, place, line and column.
    """
    inherited = None
    try:
        overlay = read_overlay(body)
        parent = parents(overlay.extends)
        if parent is None:
            message = f"there is no contract {overlay.extends!r}: register it, or extend task or apc-1.0"
            raise ContractInvalid("extends", message)
        inherited = parent.team
        if roles is not None:
            write_out(overlay, body, parent, schemas, sorted({*roles, *(overlay.roles or ())}))
        contract = write_out(overlay, body, parent, schemas)
        check_deployment(contract)
    except ContractInvalid as error:
        count = 0 if inherited is None else len(inherited.rules)
        place, message = _located(body, _own_place(error.place, count), error.message)
        raise ContractInvalid(place, message, str(path)) from error
    return contract


_RULE = re.compile(r"rules\[(\d+)\]")
_IN_EXPRESSION = re.compile(r"line (\d+), column (\d+): ")


def _own_place(place: str, inherited: int) -> str:
    """Return the place in the overlay of a place in the contract that was written out."""
    own = place.removeprefix("team.")
    return _RULE.sub(lambda match: f"rules[{max(int(match.group(1)) - inherited, 0)}]", own) if own != place else place


def _located(body: bytes, place: str, message: str) -> tuple[str, str]:
    """Return place and message, with line and column of the file before the message."""
    if message.startswith("line ") and not _IN_EXPRESSION.match(message):
        return place, message
    try:
        text = body.decode("utf-8-sig")
        reader = PlainReader(text)
        reader.document()
    except (ContractInvalid, yaml.YAMLError, UnicodeDecodeError):
        return place, message
    near = place
    while near not in reader.events:
        near = re.sub(r"(\.[^.\[]*|\[\d+\])$", "", near) if re.search(r"[.\[]", near) else "$"
    event = reader.events[near]
    line, column = _start(event)
    inside = _IN_EXPRESSION.match(message)
    if inside is not None and isinstance(event, yaml.ScalarEvent):
        at, said = _inside(text.splitlines(), event, int(inside.group(1)) - 1, int(inside.group(2)) - 1)
        if at is not None:
            line, column = at
            message = message[inside.end() :]
        else:
            message = f"{message[inside.end() :]} (after {said!r})"
    return place, f"line {line + 1}, column {column + 1}: {message}"


def _inside(lines: list[str], event: yaml.ScalarEvent, row: int, column: int) -> tuple[tuple[int, int] | None, str]:
    """Return where a position of a scalar stands in the file, and what precedes it; None when YAML changed its text."""
    wanted, (line, begin) = event.value.split("\n")[row], _start(event)
    first = line + (row if event.style != "|" else row + 1)
    if first < len(lines):
        at = lines[first].find(wanted, begin if row == 0 and event.style != "|" else 0)
        if at >= 0 and event.style != ">":
            return (first, at + column), ""
    return None, wanted[max(column - 20, 0) : column]


def _start(event: yaml.Event) -> tuple[int, int]:
    """Return line and column where an event begins, from 0."""
    return (0, 0) if event.start_mark is None else (event.start_mark.line, event.start_mark.column)


# Merging.


def write_out(
    overlay: Overlay,
    body: bytes,
    parent: Contract,
    schemas: Mapping[str, Mapping[str, Any]],
    roles: Iterable[str] | None = None,
) -> Contract:
    """Return the whole contract that an overlay makes of its parent.

    Args:
        overlay: as `read_overlay` has read it from `body`.
        body: its bytes; their hash stands in the contract.
        parent: the contract that it extends, itself perhaps written out.
        schemas: the registered schemas, by name and version.
        roles: all roles there are; None = not known here, and `roles` of the overlay, if any, are the only ones.

    Raises:
        ContractInvalid: the first place that loosens, names something unknown or cannot be compiled. Types and costs
            are checked by `check_deployment`.
    """
    document = json.loads(parent.body)
    for name in ("$schema", "comments"):
        document.pop(name, None)
    document["name"] = overlay.name
    _tighten(document, overlay, parent)
    chain = [link.model_dump() for link in parent.team.file.chain] if parent.team is not None else None
    chain = chain or [{"name": parent.name, "hash": parent.hash.hex()}]
    if overlay.name in [link["name"] for link in chain]:
        raise ContractInvalid("name", f"{overlay.name} stands in its own chain: give the file another name")
    if len(chain) >= MAX_CHAIN:
        names = " < ".join(link["name"] for link in chain)
        raise ContractInvalid("extends", f"a chain has at most {MAX_CHAIN} contracts, this has {names}: join two")
    chain.append({"name": overlay.name, "hash": sha256(body).hexdigest()})
    try:
        team = _team(overlay, parent.team, schemas, roles)
        document["team"] = json.loads(team.model_copy(update={"chain": ()}).model_dump_json(by_alias=True)) | {
            "chain": chain
        }
        document["refusals"]["order"] = list(refusal_order(ContractFile.model_validate(document)))
        document["team"]["types"] = _types_read(ContractFile.model_validate(document))
    except ValidationError as error:
        # What the overlay's own shape does not bound: numbers, and rules, counters and kept fields of the whole chain.
        first = error.errors(include_url=False, include_input=False)[0]
        raise ContractInvalid(".".join(map(str, first["loc"])) or "$", f"with its parents: {first['msg']}") from error
    made = json.dumps(_sparse(document), ensure_ascii=False, indent=1).encode() + b"\n"
    return contract_from_bytes(made)


def _sparse(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with what is absent left out of the section `team`."""

    def without_nulls(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_nulls(one) for key, one in value.items() if one is not None}
        return [without_nulls(one) for one in value] if isinstance(value, list) else value

    return document | {"team": without_nulls(document["team"])}


_RANK = ("off", "warn", "enforce")
_DEFAULTS = frozenset({"max_rounds"})
"""What is a default of sessions and no bound: it may be set either way."""
_GROWING = frozenset({"veto_window_ms"})
"""What is tighter the larger it is."""


def _tighten(document: dict[str, Any], overlay: Overlay, parent: Contract) -> None:
    _lower(document["session"], overlay.session, "session")
    for name in overlay.limits:
        if name in DEPLOYMENT_WIDE:
            raise ContractInvalid(f"limits.{name}", "the deployment's default contract sets it: leave it out")
    document["limits"] = parent.limits.model_dump(mode="json", exclude_none=True) | document["limits"]
    _lower(document["limits"], overlay.limits, "limits")
    for name, mode in overlay.verification.items():
        _stricter(document["verification"], name, mode, f"verification.{name}")
    checks = {check["name"]: check for check in document["drift_checks"]}
    for name, mode in overlay.drift_checks.items():
        if name not in checks:
            _unknown(name, checks, f"drift_checks.{name}", "check")
        _stricter(checks[name], "mode", mode, f"drift_checks.{name}")
    for name, types in overlay.required.items():
        if name not in document["required"]:
            _unknown(name, document["required"], f"required.{name}", "part")
        document["required"][name] = sorted({*document["required"][name], *map(str, types)})
    for row in document["phases"].values():
        row["packet_types"] = [one for one in row["packet_types"] if one not in overlay.without]
        if PacketType.TRANSFER in overlay.without:
            row.pop("transfer", None)
    for index, packet_type in enumerate(overlay.without):
        if packet_type in parent.control_types:
            raise ContractInvalid(f"without[{index}]", f"{packet_type} is a control type: it cannot be taken away")


def _lower(section: dict[str, Any], given: Mapping[str, int], place: str) -> None:
    """Lower numbers of a section. Raises ContractInvalid."""
    for name, value in given.items():
        known = section.get(name)
        if not isinstance(known, int | float):
            _unknown(name, [key for key, one in section.items() if isinstance(one, int)], f"{place}.{name}", "number")
        is_growing, only = name in _GROWING, f"{place}.{name}"
        if is_growing and value < known:
            raise ContractInvalid(only, f"an overlay only tightens: at least {known}, as its parent has it")
        if value > known and not is_growing and name not in _DEFAULTS:
            raise ContractInvalid(only, f"an overlay only tightens: at most {known}, as its parent has it")
        section[name] = value


def _stricter(section: dict[str, Any], name: str, mode: str, place: str) -> None:
    if name not in section:
        _unknown(name, section, place, "check")
    if _RANK.index(mode) < _RANK.index(section[name]):
        raise ContractInvalid(place, f"an overlay only tightens: its parent has {section[name]}")
    section[name] = mode


def _unknown(name: str, known: Iterable[str], place: str, what: str) -> NoReturn:
    close = get_close_matches(name, list(known), n=1)
    meant = f": do you mean {close[0]}?" if close else f"; known: {', '.join(sorted(known))}"
    raise ContractInvalid(place, f"there is no {what} {name!r}{meant}")


def _team(
    overlay: Overlay, parent: Team | None, schemas: Mapping[str, Mapping[str, Any]], roles: Iterable[str] | None
) -> TeamRules:
    before = None if parent is None else parent.file
    only = overlay.only if before is None or before.only is None else _narrowed(before.only, overlay.only)
    keep = {} if before is None else dict(before.keep)
    for schema, fields in overlay.keep.items():
        keep[schema] = tuple(dict.fromkeys((*keep.get(schema, ()), *fields)))
    counters = {} if before is None else dict(before.counters)
    for name, counter in overlay.counters.items():
        if name in counters:
            raise ContractInvalid(f"counters.{name}", "its parent has a counter of this name: name it otherwise")
        declared = counter.model_dump(by_alias=True, exclude={"within"}) | {"within_ms": counter.within}
        counters[name] = CounterDeclaration.model_validate(declared)
    if parent is not None and overlay.zone not in (None, parent.file.zone) and parent.reads_local_time:
        raise ContractInvalid("zone", f"rules of its parent read the time in {parent.file.zone}: leave the zone out")
    known = list(roles) if roles is not None else overlay.roles
    types = {} if before is None else dict(before.types)
    named: dict[str, str] = dict.fromkeys([*(only or ()), *keep], "$")
    named |= {schema: place for place, schema in reversed(list(named_schemas(overlay)))}
    for schema, place in named.items():
        if schema in schemas:
            types[schema] = field_types(schemas[schema])
        elif schema not in types:
            close = get_close_matches(schema, list(schemas), n=1)
            meant = f": do you mean {close[0]}?" if close else ": register it with `apc schema register`"
            raise ContractInvalid(place, f"there is no schema {schema}{meant}")
    return TeamRules.model_validate(
        {
            "chain": [{"name": "-", "hash": "0" * 64}] * 2,
            "only": only,
            "keep": keep,
            "counters": counters,
            "roles": None if known is None else sorted(known),
            "zone": overlay.zone or ("UTC" if before is None else before.zone),
            "rules": [
                rule.model_dump(by_alias=True) for rule in (*(() if before is None else before.rules), *overlay.rules)
            ],
            "types": types,
        }
    )


def _narrowed(before: Sequence[str], given: Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return tuple(before)
    for index, schema in enumerate(given):
        if schema not in before:
            raise ContractInvalid(f"only[{index}]", f"an overlay only tightens: its parent does not allow {schema}")
    return tuple(given)


def named_schemas(overlay: Overlay) -> Iterable[tuple[str, str]]:
    """Yield the schemas that an overlay names, each with its place."""
    yield from ((f"only[{index}]", schema) for index, schema in enumerate(overlay.only or ()))
    yield from ((f"keep.{schema}", schema) for schema in overlay.keep)
    parts: list[tuple[str, OverlayRule | OverlayCounter]] = [
        *((f"rules[{index}]", rule) for index, rule in enumerate(overlay.rules)),
        *((f"counters.{name}", counter) for name, counter in overlay.counters.items()),
    ]
    for place, part in parts:
        yield from ((f"{place}.for", subject.schema_) for subject in part.for_ if subject.schema_ is not None)


def _types_read(file: ContractFile) -> dict[str, dict[str, Any]]:
    """Return the types of the fields that rules, counters and `keep` read, by schema."""
    team = build_team(file)
    assert team is not None, "an overlay makes a team"
    read: dict[str, set[str]] = {schema: set(fields) for schema, fields in team.kept.items()}
    parts: list[Rule | Counter] = [*team.rules, *team.counters]
    for part in parts:
        paths = {path for expression in _expressions(part) for path in _paths(expression)}
        if isinstance(part, Counter):
            paths |= {one.removeprefix("content.") for one in (part.by, part.add or "") if one.startswith("content.")}
        for subject in part.subjects:
            if subject.schema_ is not None:
                read.setdefault(subject.schema_, set()).update(paths)
    return {
        schema: {path: kind.model_dump(exclude_defaults=True) for path, kind in kinds.items() if path in paths}
        for schema, paths in read.items()
        if (kinds := team.types.get(schema)) is not None
    }


def _expressions(part: Rule | Counter) -> list[Expression]:
    given = (part.when, part.require) if isinstance(part, Rule) else (part.when,)
    return [one for one in given if one is not None]


def _paths(expression: Expression) -> Iterable[str]:
    """Yield the content fields that an expression reads, and those that it compares with kept ones."""
    for reading in expression.readings:
        if reading.name.startswith("content."):
            yield reading.name.removeprefix("content.")
        elif reading.name == "has":
            yield str(reading.arguments[0]).removeprefix("content.")
        elif reading.name == "authors" and len(reading.arguments) == 2:
            yield str(reading.arguments[1])


# The fields of a schema that a rule can read.

_KINDS: Mapping[str, Kind] = {"string": "string", "number": "number", "integer": "integer", "boolean": "boolean"}


def field_types(document: Mapping[str, Any]) -> dict[str, FieldType]:
    """Return the fields of a JSON Schema that rules can read, by dotted path: of one type each, lists of such too."""
    found: dict[str, FieldType] = {}
    _collect(document, document, "", False, 0, found)
    return found


def _collect(
    document: Mapping[str, Any],
    schema: Mapping[str, Any],
    prefix: str,
    is_optional: bool,
    level: int,
    found: dict[str, FieldType],
) -> None:
    required = schema.get("required", ())
    for name, raw in schema.get("properties", {}).items():
        inner, may_be_null = _resolved(document, raw)
        if inner is None or not re.fullmatch(r"[A-Za-z_]\w*", name):
            continue
        optional = is_optional or may_be_null or name not in required
        if inner.get("type") == "object" and level < _LEVELS_OF_CONTENT:
            _collect(document, inner, f"{prefix}{name}.", optional, level + 1, found)
            continue
        kind = _field_type(document, inner)
        if kind is not None:
            found[f"{prefix}{name}"] = kind.model_copy(update={"optional": optional})


def _resolved(document: Mapping[str, Any], schema: Any) -> tuple[Mapping[str, Any] | None, bool]:
    """Return the schema behind references, and whether null is another choice; None when it has several types."""
    may_be_null = False
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, Mapping):
            return None, may_be_null
        if "$ref" in schema:
            where, _, name = str(schema["$ref"]).removeprefix("#/").partition("/")
            schema = document.get(where, {}).get(name)
        elif "anyOf" in schema or "oneOf" in schema:
            choices = [one for one in schema.get("anyOf", schema.get("oneOf")) if one != {"type": "null"}]
            may_be_null |= len(choices) < len(schema.get("anyOf", schema.get("oneOf")))
            schema = choices[0] if len(choices) == 1 else None
        elif isinstance(schema.get("type"), list):
            choices = [one for one in schema["type"] if one != "null"]
            may_be_null |= len(choices) < len(schema["type"])
            schema = {**schema, "type": choices[0]} if len(choices) == 1 else None
        else:
            return schema, may_be_null
    return None, may_be_null


def _field_type(document: Mapping[str, Any], schema: Mapping[str, Any]) -> FieldType | None:
    values = schema.get("enum", [schema["const"]] if "const" in schema else ())
    texts = tuple(one for one in values if isinstance(one, str))
    kind = schema.get("type") or ("string" if texts and len(texts) == len(values) else None)
    if kind == "string":
        length = max(map(len, texts), default=schema.get("maxLength", MAX_TEXT))
        return FieldType(kind="string", length=min(length, 65_536), values=texts)
    if isinstance(kind, str) and kind in _KINDS:
        return FieldType(kind=_KINDS[kind])
    if kind != "array":
        return None
    item, may_be_null = _resolved(document, schema.get("items"))
    if item is None or may_be_null:
        return None
    items = min(schema.get("maxItems", MAX_ITEMS), 10_000)
    if item.get("type") == "object":
        length = max((one.length for one in field_types({**document, **item}).values()), default=MAX_TEXT)
        names = tuple(sorted(item.get("properties", {})))
        return FieldType(kind="objects", items=items, length=length, fields=names)
    inner = _field_type(document, item)
    if inner is None or inner.kind not in _KINDS.values():
        return None
    lists: Mapping[str, Kind] = {
        "string": "strings",
        "number": "numbers",
        "integer": "integers",
        "boolean": "booleans",
    }
    return FieldType(kind=lists[inner.kind], items=items, length=inner.length, values=inner.values)
