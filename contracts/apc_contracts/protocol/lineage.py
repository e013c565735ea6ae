"""Which protocol descends from which: the clusters that effectiveness is computed for.

Source: docs/specification/contract.md section 6.
"""

from collections.abc import Iterable

ROOTS_KEPT = 64
"""Ancestors without parents that a protocol is measured with; beyond this the first by name."""


class ProtocolLineage:
    """The lineages that TRANSFERs declared, in the order of the log.

    A protocol exists from the time it is first named, with the parents named then; one first named as a parent has
    none. So parents are older than their children, no lineage has a cycle, and nobody can change the parents of an
    existing protocol.
    """

    def __init__(self) -> None:
        self._roots: dict[str, frozenset[str]] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._parents: dict[str, tuple[str, ...]] = {}

    def declare(self, protocol_id: str, parent_protocol_ids: Iterable[str]) -> None:
        """Record the parents in a judged TRANSFER. Idempotent: only the first TRANSFER of a protocol sets them."""
        if protocol_id in self._roots:
            return
        parents = tuple(dict.fromkeys(parent for parent in parent_protocol_ids if parent != protocol_id))
        for parent in parents:
            self._roots.setdefault(parent, frozenset({parent}))
            self._children.setdefault(parent, {})[protocol_id] = None
        inherited = frozenset().union(*(self._roots[parent] for parent in parents))
        if len(inherited) > ROOTS_KEPT:
            inherited = frozenset(sorted(inherited)[:ROOTS_KEPT])
        self._roots[protocol_id] = inherited or frozenset({protocol_id})
        if parents:
            self._parents[protocol_id] = parents

    def forget(self, protocol_id: str) -> None:
        """Forget a protocol: it and its descendants are unknown from now on."""
        self._roots.pop(protocol_id, None)
        self._children.pop(protocol_id, None)
        for parent in self._parents.pop(protocol_id, ()):
            siblings = self._children.get(parent)
            if siblings is not None:
                siblings.pop(protocol_id, None)

    def roots(self, protocol_id: str) -> frozenset[str]:
        """Return its ancestors without parents; itself when it has no parents or was never named."""
        return self._roots.get(protocol_id, frozenset({protocol_id}))

    def family(self, protocol_id: str) -> frozenset[str]:
        """Return the protocol and its descendants."""
        found, waiting = {protocol_id}, [protocol_id]
        while waiting:
            for child in self._children.get(waiting.pop(), ()):
                if child not in found:
                    found.add(child)
                    waiting.append(child)
        return frozenset(found)
