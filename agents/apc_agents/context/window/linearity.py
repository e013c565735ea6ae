"""Which turns may go and which must stay: resource classes, tracked by id across compressions.

Source: docs/reference/conformance/context-engineering.md, section 2.3.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Self

from rpds import HashTrieMap

from apc_agents.context.errors import ArgumentInvalid, LinearityError, UnknownResource
from apc_agents.json_values import checked_text


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
        return cls({resource_id: _from_document(found) for resource_id, found in document.items()})

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
