"""The ledger of all protocols: their evidence, their lineage and their blocks, updated packet by packet.

It reads no clock and no database. Its owner feeds it judged packets in the order of the log and carries out its
decisions; the same input gives the same decisions.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from apc_contracts.contract.file import Effectiveness
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import EvalPayload, TransferPayload
from apc_contracts.protocol.effectiveness import (
    DecayDecision,
    DecayKind,
    DecayScope,
    EvalTally,
    ProtocolTally,
    RunTask,
    Subject,
    is_counted,
    is_decayed,
    measure,
    recovers_at,
)
from apc_contracts.vocabulary import PacketType

# Which protocol descends from which: the clusters that effectiveness is computed for.
#
# Source: docs/specification/contract.md section 6.

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


DECAYED = "PROTOCOL_DECAYED"
IDLE_TASKS_KEPT = 100_000
"""Tasks with EVALs but no transfer yet that are kept; beyond this the oldest is forgotten."""

PROTOCOLS_KEPT = 10_000
"""Protocols kept with their evidence; beyond this the least recently named is forgotten, unless it is blocked."""
TASKS_KEPT = 100_000
"""Tasks with a transfer that are kept; beyond this the oldest is forgotten, its scores stay in the sums."""


@dataclass(frozen=True, slots=True)
class JudgedTransfer:
    """A TRANSFER with its final verdict: on arrival, or at the barrier that it was held for."""

    protocol_id: str
    parent_protocol_ids: tuple[str, ...]
    task: RunTask
    refusal_code: str | None


class ProtocolLedger:
    """The evidence, lineage and blocks of all protocols.

    `note_*` take local events and return decisions; `recall_*` and `apply` take what was decided elsewhere or earlier,
    and decide nothing.
    """

    def __init__(self, rules: Effectiveness) -> None:
        self._rules = rules
        self._lineage = ProtocolLineage()
        self._tallies: dict[Subject, ProtocolTally] = {}
        self._scores: dict[RunTask, EvalTally] = {}
        self._subjects: dict[RunTask, set[Subject]] = {}
        self._named: OrderedDict[str, None] = OrderedDict()
        """Protocols, least recently named first."""
        self._idle: OrderedDict[RunTask, EvalTally] = OrderedDict()
        self._blocks: dict[Subject, DecayDecision] = {}
        self._families: dict[Subject, frozenset[str]] | None = {}
        """What each block covers; None = to be recomputed."""
        self._decayed: frozenset[str] | None = frozenset()
        """Everything covered by a block that has not ended; None = to be recomputed."""
        self._decayed_until: datetime | None = None

    def decayed(self, now: datetime) -> frozenset[str]:
        """Return the protocols whose TRANSFERs are refused at `now`: the blocked ones and their descendants."""
        if self._decayed is None or (self._decayed_until is not None and self._decayed_until <= now):
            families = self._cover()
            active = [block for block in self._blocks.values() if block.blocked_until > now]
            self._decayed = frozenset().union(*(families[block.subject] for block in active))
            self._decayed_until = min((block.blocked_until for block in active), default=None)
        return self._decayed

    def note(self, packet: Packet, refusal_code: str | None, now: datetime) -> list[DecayDecision]:
        """Count a TRANSFER or EVAL whose verdict became final at `now`, and return the decisions to log.

        A refused EVAL and packets of other types do not count.
        """
        task = (packet.trace.run_id, packet.trace.task_id)
        if packet.packet_type is PacketType.TRANSFER:
            parents = packet.lineage.parent_protocol_ids if packet.lineage is not None else ()
            return self.note_transfer(
                JudgedTransfer(packet.payload_as(TransferPayload).protocol_id, parents, task, refusal_code), now
            )
        if packet.packet_type is PacketType.EVAL and refusal_code is None:
            if not isinstance(packet.payload, EvalPayload):
                return []  # open metrics say nothing of protocols
            metrics = packet.payload.metric_set
            return self.note_eval(task, metrics.outcome, metrics.drift_risk, now)
        return []

    def note_transfer(self, transfer: JudgedTransfer, now: datetime) -> list[DecayDecision]:
        """Count a TRANSFER judged at `now`; return the recoveries and blocks to log."""
        decisions = self._recoveries(transfer, now)
        if self.recall_transfer(transfer):
            decisions += self._blocks_of(self._subjects_of(transfer.protocol_id), now)
        return decisions

    def note_eval(self, task: RunTask, outcome: float, drift_risk: float | None, now: datetime) -> list[DecayDecision]:
        """Count an EVAL admitted at `now`; return the blocks to log."""
        self.recall_eval(task, outcome, drift_risk)
        return self._blocks_of(self._subjects.get(task, ()), now)

    def recall_transfer(self, transfer: JudgedTransfer) -> bool:
        """Count a TRANSFER without deciding anything; return whether it counted."""
        counts = is_counted(transfer.refusal_code, self._rules)
        if counts or transfer.refusal_code == DECAYED:
            # A descendant that was refused stays known as one: it cannot come back without its parents.
            self._lineage.declare(transfer.protocol_id, transfer.parent_protocol_ids)
            self._find_covered_again()
            roots = self._lineage.roots(transfer.protocol_id)
            self._note_named(*transfer.parent_protocol_ids, *sorted(roots), transfer.protocol_id)
        if counts:
            for subject in self._subjects_of(transfer.protocol_id):
                self._count(subject, transfer)
        return counts

    def recall_eval(self, task: RunTask, outcome: float, drift_risk: float | None) -> None:
        """Count an EVAL without deciding anything."""
        added = EvalTally()
        added.count(outcome, drift_risk)
        self.recall_scores(task, added)

    def recall_scores(self, task: RunTask, scores: EvalTally) -> None:
        """Count many EVALs of a task at once without deciding anything."""
        known = self._scores.get(task)
        if known is None:
            known = self._idle.setdefault(task, EvalTally())
            if len(self._idle) > IDLE_TASKS_KEPT:
                self._idle.popitem(last=False)
        known.add(scores)
        for subject in self._subjects.get(task, ()):
            self._tallies[subject].scores.add(scores)

    def apply(self, decision: DecayDecision) -> None:
        """Apply a block or a recovery from the log.

        If two shards say the same at once, the first counts.
        """
        if decision.kind is DecayKind.BLOCKED:
            self._blocks.setdefault(decision.subject, decision)
            if len(self._blocks) > PROTOCOLS_KEPT:
                del self._blocks[next(iter(self._blocks))]
            self._find_covered_again()
            return
        block = self._blocks.get(decision.subject)
        if block is None or block.blocked_at != decision.blocked_at:
            return
        del self._blocks[decision.subject]
        self._find_covered_again()
        # The evidence is spent: another block needs as many transfers as the first one did.
        for name in self._lineage.family(decision.subject.protocol_id):
            for scope in DecayScope:
                self._forget(Subject(scope, name))

    def tallies(self) -> Mapping[Subject, ProtocolTally]:
        """Return the evidence since the last recovery, for every protocol and every root."""
        return self._tallies

    def blocks(self) -> Mapping[Subject, DecayDecision]:
        """Return the blocks whose recovery was not recorded yet, also those past their end."""
        return self._blocks

    def scores(self) -> Mapping[RunTask, EvalTally]:
        """Return the EVALs of every task with a transfer."""
        return self._scores

    def roots(self, protocol_id: str) -> frozenset[str]:
        """Return the roots of the protocol's lineage."""
        return self._lineage.roots(protocol_id)

    def family(self, protocol_id: str) -> frozenset[str]:
        """Return the protocol and its descendants: what a block of it covers."""
        return self._lineage.family(protocol_id)

    def _subjects_of(self, protocol_id: str) -> list[Subject]:
        clusters = [Subject(DecayScope.CLUSTER, root) for root in sorted(self._lineage.roots(protocol_id))]
        return [Subject(DecayScope.PROTOCOL, protocol_id), *clusters]

    def _count(self, subject: Subject, transfer: JudgedTransfer) -> None:
        tally, task = self._tallies.setdefault(subject, ProtocolTally()), transfer.task
        tally.transfers += 1
        tally.accepted += transfer.refusal_code is None
        if task in tally.tasks:
            return
        tally.tasks.add(task)
        if task not in self._scores:
            self._scores[task] = self._idle.pop(task, EvalTally())
        tally.scores.add(self._scores[task])
        self._subjects.setdefault(task, set()).add(subject)
        if len(self._scores) > TASKS_KEPT:
            self._forget_task(next(iter(self._scores)))

    def _note_named(self, *names: str) -> None:
        """Mark protocols as recently named; beyond the limit forget the least recent."""
        for name in names:
            self._named[name] = None
            self._named.move_to_end(name)
        if len(self._named) <= PROTOCOLS_KEPT:
            return
        blocked = {subject.protocol_id for subject in self._blocks}
        for _ in range(len(self._named)):
            if len(self._named) <= PROTOCOLS_KEPT:
                return
            name, _ = self._named.popitem(last=False)
            if name in blocked and len(blocked) < PROTOCOLS_KEPT:
                self._named[name] = None
                continue
            self._lineage.forget(name)
            for scope in DecayScope:
                self._forget(Subject(scope, name))

    def _forget_task(self, task: RunTask) -> None:
        del self._scores[task]
        for subject in self._subjects.pop(task, ()):
            self._tallies[subject].tasks.discard(task)

    def _forget(self, subject: Subject) -> None:
        tally = self._tallies.pop(subject, None)
        for task in tally.tasks if tally is not None else ():
            self._subjects[task].discard(subject)

    def _find_covered_again(self) -> None:
        self._families = self._decayed = None

    def _cover(self) -> dict[Subject, frozenset[str]]:
        if self._families is None:
            self._families = {subject: self._lineage.family(subject.protocol_id) for subject in self._blocks}
        return self._families

    def _is_covered(self, subject: Subject) -> bool:
        return any(subject.protocol_id in family for family in self._cover().values())

    def _recoveries(self, transfer: JudgedTransfer, now: datetime) -> list[DecayDecision]:
        """Return the recoveries of this protocol's blocks that have ended: the next packet records them."""
        if not self._blocks:
            return []
        families, touched = self._cover(), {transfer.protocol_id, *transfer.parent_protocol_ids}
        decisions = [
            replace(block, kind=DecayKind.RECOVERED, at=now)
            for subject, block in sorted(self._blocks.items())
            if block.blocked_until <= now and not touched.isdisjoint(families[subject])
        ]
        for decision in decisions:
            self.apply(decision)
        return decisions

    def _blocks_of(self, subjects: Iterable[Subject], now: datetime) -> list[DecayDecision]:
        decisions: list[DecayDecision] = []
        for subject in sorted(subjects, key=_own_first):
            tally = self._tallies[subject]
            # A block past its end stays until its recovery is recorded: its evidence does not lead to another one.
            if self._is_covered(subject) or not is_decayed(measure(tally, self._rules), self._rules):
                continue
            ends = recovers_at(now, tally.transfers, self._rules)
            scores = replace(tally.scores)
            decision = DecayDecision(
                DecayKind.BLOCKED, subject, now, now, ends, tally.transfers, tally.accepted, scores
            )
            self.apply(decision)
            decisions.append(decision)
        return decisions


def _own_first(subject: Subject) -> tuple[bool, str]:
    return subject.scope is DecayScope.CLUSTER, subject.protocol_id
