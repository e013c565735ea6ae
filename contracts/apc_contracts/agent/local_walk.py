"""A handler's path through `intra_agent_coordination`, as far as the log shows it (docs/how-to/lineage.md)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from apc_contracts.contract.machine import Machine

INTRA_AGENT_MACHINE = "intra_agent_coordination"
IDEA = ("idea_packet_ready", "critique_pass", "artifact_local_ready", "local_checks_pass", "packet_emitted")
"""The events of an emission up to the broker's confirm."""


class Answer(StrEnum):
    """The outcome of an emission."""

    TAKEN = "taken"
    REFUSED = "refused"
    OPEN = "open"
    """It requires an ACK that has not come."""


@dataclass(frozen=True, slots=True)
class LocalStep:
    """One step of the machine."""

    event: str
    from_state: str
    to_state: str


def walk_from_log(machine: Machine, answers: Sequence[Answer], *, has_failed: bool) -> tuple[LocalStep, ...]:
    """Return the steps of one handler invocation, derived from its emissions in the order of the log.

    A handler's own `critique_fail` and `local_checks_fail` are not logged, so they are not seen. A handler that emitted
    nothing has no instance of the machine.
    """
    walk = _Walk(machine)
    for answer in answers:
        walk.emit(answer)
    if has_failed and answers:
        walk.take("cancel_or_error")
    return tuple(walk.steps)


class _Walk:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._state = machine.initial
        self.steps: list[LocalStep] = []

    def emit(self, answer: Answer) -> None:
        if self._state == self._machine.initial:
            self.take("task_assigned")
            self.take("context_complete")
        if self._machine.edge(self._state, IDEA[0]) is None:
            return  # beside an emission that waits for its ACK: the machine follows one at a time
        for event in IDEA:
            self.take(event)
        if answer is not Answer.OPEN:
            self.take("ack_accepted" if answer is Answer.TAKEN else "ack_rejected_or_deferred")

    def take(self, event: str) -> None:
        before, self._state = self._state, self._machine.step(self._state, event)
        self.steps.append(LocalStep(event, before, self._state))
