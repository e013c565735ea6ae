"""Turns of a conversation, a sequence of them that versions share, and the errors of the engineered context."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum
from hashlib import sha256
from itertools import chain
from typing import Any, Final, Self, overload

import orjson
from pydantic import JsonValue
from rpds import HashTrieMap

from apc_agents.errors import AgentError
from apc_agents.json_values import checked_text, json_value


class ContextError(AgentError):
    """Something went wrong in a context.

    AgentError
      ContextError
        ContextPressureError   a turn for a context that is pressured: compress or clear first
        InvalidTransition      (state, kind): an input that the state does not list
        TurnInvalid            a turn that cannot be stored as it stands
          MessageTooLong       (tokens, limit): a turn that the window cannot hold beside what must stay
        ArgumentInvalid        (place): an argument outside its range or of the wrong type
        UnknownPath            (path): no operation has this path
        UnknownResource        (resource_id): no turn of this window has this id
        LinearityError         (resource_id): a class that would sink, or a drop of what may not be dropped
        CompositionRefused     (step): a composition of operations that cannot run
        PromptInvalid          (place): a template, or what is asked of it, does not fit
        ContextStoreError
          ArchiveCorrupted     (resource_id): the store gave back other bytes than it got
          ContextStale         (session_id, revision): another process has saved this session since it was read

    Whatever raises one of them leaves the context as it was.
    """


class ContextPressureError(ContextError):
    """Context pressured. Compress or clear first."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"{kind} refused: context pressured. Compress or clear first.")
        self.kind = kind


class InvalidTransition(ContextError):
    """An input that the state does not list."""

    def __init__(self, state: str, kind: str, valid: list[str]) -> None:
        super().__init__(f"{kind} refused in state {state}: it takes {', '.join(valid)}")
        self.state = state
        self.kind = kind


class TurnInvalid(ContextError):
    """A turn that cannot be stored as it stands; `place` names the field."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"turn refused at {place}: {message}")
        self.place = place


class MessageTooLong(TurnInvalid):
    """A turn that the window cannot hold beside what must stay."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__("content", f"it has {tokens} tokens and {limit} fit: shorten it, or send it in parts")
        self.tokens = tokens
        self.limit = limit


class ArgumentInvalid(ContextError):
    """An argument outside its range or of the wrong type; `place` names it."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place = place


class UnknownPath(ContextError):
    """No operation has this path."""

    def __init__(self, path: str, known: list[str]) -> None:
        super().__init__(f"unknown path {path!r}: known are {', '.join(known)}")
        self.path = path


class UnknownResource(ContextError):
    """No turn of this window has this id."""

    def __init__(self, resource_id: str) -> None:
        super().__init__(f"unknown resource_id {resource_id!r}: linearity.stats and map.transform list those there are")
        self.resource_id = resource_id


class LinearityError(ContextError):
    """A class that would sink, or a drop of what may not be dropped."""

    def __init__(self, resource_id: str, message: str) -> None:
        super().__init__(f"{resource_id}: {message}")
        self.resource_id = resource_id


class CompositionRefused(ContextError):
    """A composition of operations that cannot run; `step` counts its operations from 0."""

    def __init__(self, step: int, operation: str, message: str) -> None:
        super().__init__(f"step {step} ({operation}) refused: {message}")
        self.step = step
        self.operation = operation


class PromptInvalid(ContextError):
    """A template, or what is asked of it, does not fit; `place` names the template or the field."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"prompt refused at {place}: {message}")
        self.place = place


class ContextStoreError(ContextError):
    """What a context keeps in a memory store cannot be used."""


class ArchiveCorrupted(ContextStoreError):
    """The store gave back other bytes than it got."""

    def __init__(self, resource_id: str) -> None:
        super().__init__(f"the archived turn {resource_id} is not what was put away: its digest differs")
        self.resource_id = resource_id


class ContextStale(ContextStoreError):
    """Another process has saved this session since it was read."""

    def __init__(self, session_id: str, revision: int) -> None:
        super().__init__(f"the context of session {session_id} has left revision {revision}: open it again")
        self.session_id = session_id
        self.revision = revision


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


# Which turns may go and which must stay: resource classes, tracked by id across compressions.
#
# Source: docs/reference/conformance/context-engineering.md, section 2.3.


class ResourceClass(Enum):
    """What compression may do to a turn. Ordered: DROPPABLE < REQUIRED < PRESERVED."""

    DROPPABLE = 0
    """Chitchat, exploratory: dropped first."""
    REQUIRED = 1
    """Important context: summarized if needed."""
    PRESERVED = 2
    """System prompts, user constraints: never touched."""

    def __lt__(self, other: "ResourceClass") -> bool:
        """Return whether compression touches this class before the other."""
        return bool(self.value < other.value)


@dataclass(frozen=True, slots=True)
class ProvenanceEvent:
    """One event in the life of a resource: `event` is tagged, promoted or dropped; `source` says by whom or why."""

    event: str
    resource_class: ResourceClass
    source: str


@dataclass(frozen=True, slots=True)
class Resource:
    """What is known of one resource."""

    resource_class: ResourceClass
    provenance: tuple[ProvenanceEvent, ...]
    is_dropped: bool = False


class LinearityMap:
    """Resources by id; a value: `tag`, `promote` and `drop` give a new map that shares all but the change.

    A class never sinks and an id is never forgotten, whatever compression does to the turn.
    """

    __slots__ = ("_resources",)

    def __init__(self, resources: Mapping[str, Resource] | None = None) -> None:
        self._resources: HashTrieMap[str, Resource] = HashTrieMap(resources or {})

    def tag(self, resource_id: str, resource_class: ResourceClass, source: str) -> "LinearityMap":
        """Assign a class to a resource, new or known.

        Raises:
            LinearityError: the resource has a higher class. ArgumentInvalid: a source that no store can hold.
        """
        return self._raised(resource_id, resource_class, "tagged", source)

    def promote(self, resource_id: str, resource_class: ResourceClass, rationale: str) -> "LinearityMap":
        """Raise the class of a known resource; the class that it has already is no error.

        Raises:
            UnknownResource: no resource has this id.
            LinearityError: the resource has a higher class. ArgumentInvalid: a rationale that no store can hold.
        """
        self.resource(resource_id)
        return self._raised(resource_id, resource_class, "promoted", rationale)

    def drop(self, resource_id: str, rationale: str) -> "LinearityMap":
        """Note that a DROPPABLE resource was dropped; dropping it again changes nothing.

        Raises:
            UnknownResource: no resource has this id.
            LinearityError: the resource is REQUIRED or PRESERVED. ArgumentInvalid: as promote.
        """
        known = self.resource(resource_id)
        if known.resource_class is not ResourceClass.DROPPABLE:
            raise LinearityError(resource_id, f"it is {known.resource_class.name}, and only DROPPABLE may be dropped")
        if known.is_dropped:
            return self
        event = ProvenanceEvent("dropped", known.resource_class, checked_text(rationale, "rationale", ArgumentInvalid))
        return self._with(resource_id, Resource(known.resource_class, (*known.provenance, event), is_dropped=True))

    def restore(self, resource_id: str) -> "LinearityMap":
        """Note that a dropped resource is back. Raises UnknownResource."""
        known = self.resource(resource_id)
        if not known.is_dropped:
            return self
        return self._with(resource_id, Resource(known.resource_class, known.provenance))

    def get_class(self, resource_id: str) -> ResourceClass:
        """Return the class of a resource. Raises UnknownResource."""
        return self.resource(resource_id).resource_class

    def provenance(self, resource_id: str) -> tuple[ProvenanceEvent, ...]:
        """Return how a resource got its class, oldest event first. Raises UnknownResource."""
        return self.resource(resource_id).provenance

    def resource(self, resource_id: str) -> Resource:
        """Return all that is known of a resource. Raises UnknownResource."""
        known = self._resources.get(resource_id)
        if known is None:
            raise UnknownResource(resource_id)
        return known

    def stats(self) -> dict[str, int]:
        """Count resources by class in lower case, with `dropped` and `total`."""
        counts = {resource_class.name.lower(): 0 for resource_class in ResourceClass} | {"dropped": 0}
        for resource in self._resources.values():
            counts[resource.resource_class.name.lower()] += 1
            counts["dropped"] += resource.is_dropped
        return counts | {"total": len(self)}

    def __len__(self) -> int:
        return len(self._resources)

    def __iter__(self) -> Iterator[str]:
        return iter(self._resources)

    def __contains__(self, resource_id: object) -> bool:
        return resource_id in self._resources

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LinearityMap):
            return NotImplemented
        return self is other or self._resources == other._resources

    def to_document(self) -> dict[str, Any]:
        """Return JSON: {resource_id: {class, dropped, provenance: [[event, class, source], …]}}."""
        return {resource_id: _to_document(resource) for resource_id, resource in self._resources.items()}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Return the map that `to_document` described."""
        return cls({resource_id: _from_document(stored) for resource_id, stored in document.items()})

    def _raised(self, resource_id: str, resource_class: ResourceClass, event: str, source: str) -> "LinearityMap":
        known = self._resources.get(resource_id, _NEW)
        if known is not _NEW and resource_class < known.resource_class:
            what = f"it is {known.resource_class.name}, and a class never sinks to {resource_class.name}"
            raise LinearityError(resource_id, what)
        happened = ProvenanceEvent(event, resource_class, checked_text(source, "rationale", ArgumentInvalid))
        return self._with(resource_id, Resource(resource_class, (*known.provenance, happened), known.is_dropped))

    def _with(self, resource_id: str, resource: Resource) -> "LinearityMap":
        changed = LinearityMap.__new__(LinearityMap)
        changed._resources = self._resources.insert(resource_id, resource)
        return changed


_NEW: Final = Resource(ResourceClass.DROPPABLE, ())


def _to_document(resource: Resource) -> dict[str, Any]:
    return {
        "class": resource.resource_class.name,
        "dropped": resource.is_dropped,
        "provenance": [[one.event, one.resource_class.name, one.source] for one in resource.provenance],
    }


def _from_document(document: Mapping[str, Any]) -> Resource:
    events = tuple(
        ProvenanceEvent(event, ResourceClass[name], source) for event, name, source in document["provenance"]
    )
    return Resource(ResourceClass[document["class"]], events, is_dropped=document["dropped"])


# The class that a turn gets when it comes: by its role, and raised by what it says.
#
# Source: docs/specification/agents.md section 4.

CLASS_OF_ROLE: Final = {
    TurnRole.USER: ResourceClass.PRESERVED,
    TurnRole.SYSTEM: ResourceClass.REQUIRED,
    TurnRole.ASSISTANT: ResourceClass.DROPPABLE,
    TurnRole.TOOL: ResourceClass.DROPPABLE,
}
"""What a role gives. The first turn of a window is PRESERVED if it is a system turn: the initial system prompt."""

INITIAL_PROMPT: Final = "initial system prompt"
"""What the linearity map names as the source of that turn's class."""

CLASS_OF_MARKER: Final = {
    "constraint": ResourceClass.PRESERVED,
    "remember": ResourceClass.PRESERVED,
    "decision": ResourceClass.REQUIRED,
    "error": ResourceClass.REQUIRED,
    "important": ResourceClass.REQUIRED,
    "result": ResourceClass.REQUIRED,
}
"""Words that raise a class when a line begins with them and a colon follows, in any case: `Decision: …`.

The marks of Markdown may stand around them: of a list, heading or quotation, and of emphasis: `- **Decision:** …`.
"""

CLASS_OF_CODE: Final = ResourceClass.REQUIRED
"""What a fenced code block raises a turn to."""

_MARKED_LINE: Final = re.compile(
    rf"[ \t>#*+_`-]*(?:\d{{1,3}}[.)][ \t]*)?[*_`]{{0,3}}({'|'.join(CLASS_OF_MARKER)})[ \t*_`]*:", re.IGNORECASE
)
_CODE_FENCE: Final = re.compile(r"^[ \t>]*(?:```|~~~)", re.MULTILINE)


def classify_by_role(role: TurnRole) -> ResourceClass:
    """Return the class that every turn of this role has at least."""
    return CLASS_OF_ROLE[role]


def classify_by_content(content: str) -> ResourceClass:
    """Return the highest class that a marker or a code block in the content asks for; DROPPABLE without one."""
    by_marker = classify_by_marker(content)
    return CLASS_OF_CODE if by_marker < CLASS_OF_CODE and _CODE_FENCE.search(content) else by_marker


def classify_by_marker(content: str) -> ResourceClass:
    """Return the highest class that a marker in the content asks for; DROPPABLE without one."""
    found = (_MARKED_LINE.match(line) for line in content.split("\n"))
    asked = (CLASS_OF_MARKER[mark[1].lower()] for mark in found if mark)
    return max(asked, key=lambda one: one.value, default=ResourceClass.DROPPABLE)


def marked_lines(content: str) -> str:
    """Return the lines that begin with a marker; empty without one."""
    return "\n".join(line for line in content.split("\n") if _MARKED_LINE.match(line))


def classify(role: TurnRole, content: str, *, is_first: bool) -> tuple[ResourceClass, str]:
    """Return the class of a new turn, and what decided it. Markers only raise."""
    if is_first and role is TurnRole.SYSTEM:
        return ResourceClass.PRESERVED, INITIAL_PROMPT
    by_role, by_content = classify_by_role(role), classify_by_content(content)
    return (by_content, "marker") if by_role < by_content else (by_role, f"role {role}")
