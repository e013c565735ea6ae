"""One session in two runs, one of them through crashes, and the reference that both are compared with."""

import copy
from collections import deque
from typing import Any

from hypothesis import note
from hypothesis.stateful import (
    RuleBasedStateMachine,
)

from apc_contracts import Packet
from apc_contracts.judging.verdict import Verdict
from apc_contracts.payloads.by_type import Payload
from apc_contracts.session.document import decode_document
from apc_contracts.vocabulary import ORCHESTRATOR

from ..conftest import BEGINNING, HANDLED, Simulation
from .reference import Reference, Said
from .reference_rules import PHASE


class Disturbed(Simulation):
    """The same session through crashes: each input is judged twice, and the first time forgotten."""

    def take(self, packet: Packet) -> Verdict:
        if self.opened is not None and self.crashes:
            kept = copy.deepcopy((self.opened, self.inboxes, self.put_off, self.stream))
            lists = [len(one) for one in (self.transitions, self.packets, self.effects)]
            denied = dict(self.denied)
            self.crashes -= 1
            super().take(packet)
            self.opened, self.inboxes, self.put_off, self.stream = kept
            self.session.document = decode_document(self.session.document.encode())
            for one, length in zip((self.transitions, self.packets, self.effects), lists, strict=True):
                del one[length:]  # type: ignore[attr-defined]
            self.denied = denied
        return super().take(packet)

    crashes = 0


class TwoRuns(RuleBasedStateMachine):
    """What every rule uses: a packet into both runs, and the receipts for what they deliver."""

    runs: list[Any]
    reference: Reference
    said: list[tuple[Packet, Said]]
    count: int

    @property
    def clean(self) -> Any:
        return self.runs[0].session

    @property
    def now(self) -> float:
        return float((self.runs[0].now - BEGINNING).total_seconds())

    def send(self, said: Said, payload: Payload, to: str | tuple[str, ...] = ORCHESTRATOR, **fields: Any) -> Packet:
        """Return a packet into both runs; both judge it as the reference does."""
        stamps: dict[str, Any] = {"run_phase": said.phase, "generation": said.generation} | fields
        packet: Packet = self.runs[0].build(said.sender, payload, to, **stamps)
        expected = self.reference.judge(said)
        note(f"{said} -> {expected}")
        for run in self.runs:
            verdict = run.take(packet)
            got = verdict.refusal.code if verdict.refusal else verdict.kind.value
            assert got == expected, (said, verdict.refusal)
        self.said.append((packet, said))
        if expected == "accepted":
            self.reference.take(said, self.now)
        elif expected == "held":
            self.reference.hold(said)
        elif expected == "BUDGET_EXHAUSTED":
            self.reference.run_out()
        self.handle()
        return packet

    def handle(self) -> None:
        """Everybody who is awake handles what waits; in the disturbed run in another order, and told twice."""
        awake = [agent for agent in ("librarian", "red-1", "blue-1", "sentinel", "judge") if self.is_awake(agent)]
        clean, disturbed = self.runs
        clean.acknowledge(*awake)
        while any(disturbed.inboxes.get(agent) for agent in awake):
            for agent in reversed(awake):
                inbox = disturbed.inboxes.setdefault(agent, deque())
                if inbox:
                    packet, attempt = inbox.popleft()
                    for kinds in (HANDLED[:2], HANDLED, HANDLED[:1]):
                        disturbed.receipts(packet, agent, attempt, kinds)

    def is_awake(self, agent: str) -> bool:
        return agent not in self.reference.asleep

    def fresh(self) -> tuple[str, ...]:
        """Return a symbolic key that nobody has used: no packet is a loop."""
        self.count += 1
        return (f"key-{self.count}",)

    def speak(self, sender: str, kind: str, **fields: Any) -> Said:
        phase = PHASE.get(self.reference.state, self.clean.run_phase.value)
        return Said(sender, kind, **({"phase": phase, "generation": self.reference.generation} | fields))
