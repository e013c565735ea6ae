"""Turns of a conversation, and a sequence of them that versions share."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from itertools import chain
from typing import Any, overload

import orjson
from pydantic import JsonValue

from apc_agents.context.errors import TurnInvalid
from apc_agents.json_values import checked_text, json_value


class TurnRole(StrEnum):
    """Who speaks in a turn."""

    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn. Its `resource_id` names it in the linearity map, the audit and the store."""

    role: TurnRole
    content: str
    timestamp: datetime
    resource_id: str
    ordinal: int
    """Its place in the conversation, from 1; never given twice, not even after a clear."""
    tokens: int
    """As the window's counter has it; no part of the stored turn."""
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        """Return the stored turn as JSON."""
        return self._fields() | {"timestamp": self.timestamp.isoformat()}

    def _fields(self) -> dict[str, Any]:
        return {
            "role": self.role.value,
            "content": self.content,
            "timestamp": self.timestamp,
            "resource_id": self.resource_id,
            "ordinal": self.ordinal,
            "metadata": self.metadata,
        }

    def to_bytes(self) -> bytes:
        """Return the stored turn: UTF-8 JSON with sorted keys; the same turn always gives the same bytes."""
        return orjson.dumps(self._fields(), option=orjson.OPT_SORT_KEYS)

    @property
    def digest(self) -> str:
        """SHA-256 of the stored turn, 64 hex digits."""
        return digest_of(self.to_bytes())

    def saying(self, content: str, tokens: int) -> "Turn":
        """Return the same turn with another content."""
        return Turn(
            self.role, content, self.timestamp, self.resource_id, self.ordinal, tokens=tokens, metadata=self.metadata
        )

    @classmethod
    def from_document(cls, document: Mapping[str, Any], tokens: int) -> "Turn":
        """Return the turn that `to_document` described."""
        return cls(
            role=TurnRole(document["role"]),
            content=document["content"],
            timestamp=datetime.fromisoformat(document["timestamp"]),
            resource_id=document["resource_id"],
            ordinal=document["ordinal"],
            tokens=tokens,
            metadata=document["metadata"],
        )


def digest_of(stored: bytes) -> str:
    """Return the SHA-256 of a turn in hex."""
    return sha256(stored).hexdigest()


def checked_content(content: object) -> str:
    """Return the content, if every store can hold it. Raises TurnInvalid."""
    return checked_text(content, "content", TurnInvalid)


def checked_metadata(metadata: Mapping[str, JsonValue] | None) -> dict[str, JsonValue]:
    """Return a copy of the metadata as plain JSON. Raises TurnInvalid."""
    copied = json_value(metadata or {}, "metadata", TurnInvalid)
    if not isinstance(copied, dict):
        raise TurnInvalid("metadata", f"it is {type(metadata).__name__}: give an object")
    return copied


class Turns(Sequence[Turn]):
    """A sequence that grows by new versions: chunks of 32 turns, shared by all versions, and a short tail.

    `append` copies at most 31 references and, once in 32 times, the list of chunks; never a turn.
    """

    __slots__ = ("_chunks", "_length", "_tail")
    WIDTH = 32

    def __init__(self, turns: Iterable[Turn] = ()) -> None:
        listed, width = tuple(turns), self.WIDTH
        whole = len(listed) - len(listed) % width
        self._chunks = tuple(listed[start : start + width] for start in range(0, whole, width))
        self._tail = listed[whole:]
        self._length = len(listed)

    def append(self, turn: Turn) -> "Turns":
        """Return this sequence with one more turn."""
        grown = Turns.__new__(Turns)
        grown._length = self._length + 1
        tail = (*self._tail, turn)
        is_full = len(tail) == self.WIDTH
        grown._chunks = (*self._chunks, tail) if is_full else self._chunks
        grown._tail = () if is_full else tail
        return grown

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Turn, ...]: ...
    def __getitem__(self, index: int | slice) -> Turn | tuple[Turn, ...]:
        if isinstance(index, slice):
            return tuple(self)[index]
        index = index + self._length if index < 0 else index
        if not 0 <= index < self._length:
            raise IndexError(index)
        chunk, place = divmod(index, self.WIDTH)
        return self._chunks[chunk][place] if chunk < len(self._chunks) else self._tail[place]

    def __iter__(self) -> Iterator[Turn]:
        return chain(chain.from_iterable(self._chunks), self._tail)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Turns):
            return NotImplemented
        return self is other or (self._chunks, self._tail) == (other._chunks, other._tail)
