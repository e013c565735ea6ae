"""What packets say, for readers: a line for each packet of a list, whether its body can be read, and schemas."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import asyncpg
import orjson

from apc_contracts.content import content_line, typed_content
from apc_contracts.schemas import RegisteredSchema
from apc_log.body_encryption import is_sealed, key_id_of
from apc_log.errors import BodyUnreadable
from apc_log.queries.packet_pages import bodies_at, known_keys
from apc_log.queries.packets import Position
from apc_log.registry import read_schemas
from apc_web.access import AccountRole, caller
from apc_web.models import ApiModel, Shown

BodyState = Literal["readable", "sealed", "erased", "damaged"]
"""sealed: encrypted, and this server holds no key; erased: its key was destroyed; damaged: no JSON of a packet."""


class Spoken(ApiModel):
    """What every packet of a list tells of its content."""

    line: str = ""
    """What it says, in one line: of typed data its fields in the order of the schema. '' for viewers."""
    body: Shown[BodyState] = "readable"
    """Whether this server can read what it says."""


Model = TypeVar("Model", bound=Spoken)


class ContentLine(Spoken):
    """The line of one packet of a session."""

    seq: Shown[int]


class ContentLines(ApiModel):
    """Lines of packets of a session, in the order of the log."""

    items: Shown[list[ContentLine]]


class SchemaDocument(ApiModel):
    """A registered JSON Schema of typed content."""

    schema_id: Shown[str]
    document: dict[str, Any]


# Lines of packets: their bodies are read a few at a time, and schemas once.

_AT_ONCE = 64
"""Bodies in memory; each has 256 KiB at most."""
_MOST_KEPT = 500


class SchemaCache:
    """The registered schemas that were asked for last: a version never changes."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, RegisteredSchema] = OrderedDict()

    async def of(self, pool: asyncpg.Pool, ids: Iterable[str]) -> Mapping[str, RegisteredSchema]:
        """Return those of these schemas that are registered, by their id."""
        wanted = set(ids)
        missing = wanted - self._known.keys()
        if missing:
            self._known |= await read_schemas(pool, missing)
        found = {name: self._known[name] for name in wanted & self._known.keys()}
        for name in found:
            self._known.move_to_end(name)
        while len(self._known) > _MOST_KEPT:
            self._known.popitem(last=False)
        return found


@dataclass(frozen=True, slots=True)
class Said:
    """What a packet says, in one line, and whether its body can be read."""

    line: str = ""
    body: BodyState = "readable"


class _Placed(Protocol):
    @property
    def shard(self) -> int: ...
    @property
    def seq(self) -> int: ...


async def said_at(pool: asyncpg.Pool, cache: SchemaCache, rows: Iterable[_Placed]) -> dict[Position, Said]:
    """Return what the packets at these positions say; nothing where a viewer asks."""
    if caller().role is AccountRole.VIEWER:
        return {}
    places = list(dict.fromkeys(Position(row.shard, row.seq) for row in rows))
    said: dict[Position, Said] = {}
    for start in range(0, len(places), _AT_ONCE):
        said |= await _said(pool, cache, places[start : start + _AT_ONCE])
    return said


def spoken(model: type[Model], rows: Iterable[_Placed], said: Mapping[Position, Said]) -> list[Model]:
    """Return rows as models, each with what its packet says."""
    return [model.of(said.get(Position(row.shard, row.seq), Said()), row) for row in rows]


async def _said(pool: asyncpg.Pool, cache: SchemaCache, places: Sequence[Position]) -> dict[Position, Said]:
    stored = await bodies_at(pool, places)
    states = await body_states(pool, [body for _, body in stored.values()])
    payloads = {place: (packet_type, payload_of(body)) for place, (packet_type, body) in stored.items()}
    carried = filter(None, (typed_content(payload) for _, payload in payloads.values() if payload is not None))
    schemas = await cache.of(pool, (schema_id for schema_id, _ in carried))
    said: dict[Position, Said] = {}
    for (place, (packet_type, payload)), state in zip(payloads.items(), states, strict=True):
        line = "" if payload is None else content_line(packet_type, payload, schemas)
        said[place] = Said(line, state)
    return said


async def body_states(pool: asyncpg.Pool, bodies: Sequence[bytes]) -> list[BodyState]:
    """Return for each stored body whether this server can read it."""
    keys = {body: _key_of(body) for body in bodies if is_sealed(body)}
    held = await known_keys(pool, {key for key in keys.values() if key is not None}) if keys else frozenset()
    return [
        ("sealed" if keys[body] in held else "erased")
        if body in keys
        else ("damaged" if payload_of(body) is None else "readable")
        for body in bodies
    ]


def _key_of(sealed: bytes) -> Any:
    try:
        return key_id_of(sealed)
    except BodyUnreadable:
        return None


def payload_of(body: bytes) -> dict[str, Any] | None:
    """Return the payload of a stored body as JSON; None where it is encrypted, or no packet."""
    document = document_of(body)
    payload = None if document is None else document.get("payload")
    return payload if isinstance(payload, dict) else None


def document_of(body: bytes) -> dict[str, Any] | None:
    """Return a stored body as JSON; None where it is encrypted, or no object."""
    if is_sealed(body):
        return None
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None
