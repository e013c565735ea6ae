"""The dependencies of a session: parents, evidence_refs, packet_ref_ids of ARBITRATIONs, artifact hashes.

The log computes the same closure in one query (`apc_log.queries.lineage`); a test keeps both equal.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from apc_contracts.envelope.references import packet_named
from apc_contracts.vocabulary import PacketType


@dataclass(slots=True)
class Grounds:
    """The edges between one session's admitted packets, from a ground to what rests on it."""

    resting: dict[UUID, list[UUID]] = field(default_factory=dict)
    """packet -> those that name it as parent, evidence or candidate."""
    citing: dict[str, list[UUID]] = field(default_factory=dict)
    """Artifact hash -> packets that refer to it."""
    defining: dict[str, list[UUID]] = field(default_factory=dict)
    """Artifact hash -> ARTIFACTs with that hash."""
    defined: dict[UUID, str] = field(default_factory=dict)
    """ARTIFACT -> its hash."""
    replaced: dict[UUID, UUID] = field(default_factory=dict)
    """Retracted packet -> the replacement that its sender named; the replacement does not rest on the retracted one."""
    edges: int = 0
    """How many times a packet names another packet or an artifact."""

    def note(
        self, packet_id: UUID, packet_type: PacketType, parent: UUID | None, refers: Iterable[str], names: Sequence[str]
    ) -> None:
        """Add a packet: `refers` and `names` as `apc_contracts.envelope.references` reads them."""
        if parent is not None:
            self.edges += 1
            self.resting.setdefault(parent, []).append(packet_id)
        for reference in refers:
            self.edges += 1
            named = packet_named(reference)
            if named is not None:
                self.resting.setdefault(named, []).append(packet_id)
            else:
                self.citing.setdefault(reference, []).append(packet_id)
        if packet_type is PacketType.ARTIFACT and names:
            self.defining.setdefault(names[0], []).append(packet_id)
            self.defined[packet_id] = names[0]

    def closure(self, target: UUID) -> list[UUID]:
        """Return everything that rests on a packet, transitively, nearest first; without it and its replacement."""
        found = {target: None, self.replaced.get(target, target): None}
        waiting = [target]
        for packet_id in waiting:
            for resting in self._resting_on(packet_id):
                if resting not in found:
                    found[resting] = None
                    waiting.append(resting)
        return waiting[1:]

    def grounds_of(self, packet_id: UUID, parent: UUID | None, refers: Iterable[str]) -> Iterator[UUID]:
        """Yield the packets that a packet rests on directly: neither itself nor what it replaces.

        A hash stands for the ARTIFACTs with those bytes that were not replaced by another with the same bytes.
        """
        for ground in self._named(parent, refers):
            if ground != packet_id and self.replaced.get(ground) != packet_id:
                yield ground

    def _named(self, parent: UUID | None, refers: Iterable[str]) -> Iterator[UUID]:
        if parent is not None:
            yield parent
        for reference in refers:
            named = packet_named(reference)
            if named is not None:
                yield named
                continue
            for artifact in self.defining.get(reference, ()):
                replacement = self.replaced.get(artifact)
                if replacement is None or self.defined.get(replacement) != reference:
                    yield artifact

    def _resting_on(self, packet_id: UUID) -> Iterator[UUID]:
        yield from self.resting.get(packet_id, ())
        digest = self.defined.get(packet_id)
        if digest is not None:
            yield from self.citing.get(digest, ())
