"""Which protocol descends from which: the clusters that effectiveness is computed for.

Source: docs/specification/contract.md section 6.
"""

from collections.abc import Iterable


class ProtocolLineage:
    """The lineages that TRANSFERs declared, in the order of the log.

    A protocol is born when it is first named, and has the parents that were named with it; one that is first named as
    a parent has none. So parents are older than their children, no lineage is a circle, and nobody can give a protocol
    that exists other parents.
    """

    def __init__(self) -> None:
        self._roots: dict[str, frozenset[str]] = {}
        self._children: dict[str, list[str]] = {}

    def declare(self, protocol_id: str, parent_protocol_ids: Iterable[str]) -> None:
        """A TRANSFER of this protocol was judged. Idempotent: only the first one of a protocol tells its parents."""
        if protocol_id in self._roots:
            return
        parents = tuple(dict.fromkeys(parent for parent in parent_protocol_ids if parent != protocol_id))
        for parent in parents:
            self._roots.setdefault(parent, frozenset({parent}))
            self._children.setdefault(parent, []).append(protocol_id)
        inherited = frozenset().union(*(self._roots[parent] for parent in parents))
        self._roots[protocol_id] = inherited or frozenset({protocol_id})

    def roots(self, protocol_id: str) -> frozenset[str]:
        """Its ancestors without parents; itself when it has no parents or was never named."""
        return self._roots.get(protocol_id, frozenset({protocol_id}))

    def family(self, protocol_id: str) -> frozenset[str]:
        """Itself and everything that descends from it: all of it is younger."""
        found, waiting = {protocol_id}, [protocol_id]
        while waiting:
            for child in self._children.get(waiting.pop(), ()):
                if child not in found:
                    found.add(child)
                    waiting.append(child)
        return frozenset(found)
