"""One object for the copies of a packet that reach several agents of one process.

A MULTICAST comes once to each of its recipients, in the same bytes. Reading them is a quarter of what a worker does,
so agents that share a process share the packet too, where nothing in it can be changed.
"""

from collections.abc import Callable
from datetime import datetime
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel

from apc_contracts.packet import Packet

MOST = 128
MOST_BYTES = 16 * 1024
"""Larger bodies are read for each agent: they are rare, and would stay in memory."""


class SharedPackets:
    """The last packets that were read, by message id; a packet is shared only for equal bytes."""

    def __init__(self, parse: Callable[[bytes], Packet]) -> None:
        self._parse = parse
        self._known: dict[str, tuple[bytes, Packet]] = {}

    def read(self, message_id: str, body: bytes) -> Packet:
        """Return the packet in `body`. Raises what `parse` raises."""
        known = self._known.get(message_id)
        if known is not None and known[0] == body:
            return known[1]
        packet = self._parse(body)
        if len(body) <= MOST_BYTES and is_unchangeable(packet):
            if len(self._known) >= MOST:
                del self._known[next(iter(self._known))]
            self._known[message_id] = (body, packet)
        return packet


@lru_cache(1024)
def _places(model: type[BaseModel]) -> "tuple[attrgetter[Any], ...] | None":
    """Return the optional fields that may hold something that can change; None when one of the others does."""
    found = _paths(model)
    return None if found is None else tuple(map(attrgetter, found))


def is_unchangeable(packet: Packet) -> bool:
    """Return whether nothing in a packet can be changed: no mapping, no list, however deep."""
    places = _places(type(packet))
    return places is not None and all(place(packet) is None for place in places)


def _paths(model: type[BaseModel]) -> list[str] | None:
    if not model.model_config.get("frozen"):
        return None
    found: list[str] = []
    for name, declared in model.model_fields.items():
        kind = declared.annotation
        if _is_unchangeable(kind):
            continue
        if type(None) in get_args(kind):
            found.append(name)
        elif isinstance(kind, type) and issubclass(kind, BaseModel) and (inner := _paths(kind)) is not None:
            found += [f"{name}.{path}" for path in inner]
        else:
            return None
    return found


def _is_unchangeable(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Literal or annotation is type(None) or annotation is Ellipsis:
        return True
    if origin in (Union, UnionType, tuple, frozenset):
        return all(map(_is_unchangeable, get_args(annotation)))
    if origin is Annotated:
        return _is_unchangeable(get_args(annotation)[0])
    if not isinstance(annotation, type) or annotation is object:
        return False
    if issubclass(annotation, BaseModel):
        return _paths(annotation) == []
    return issubclass(annotation, str | int | float | UUID | datetime | bytes | Enum)
