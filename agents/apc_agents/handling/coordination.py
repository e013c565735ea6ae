"""Where one handler invocation stands: an instance of the machine `intra_agent_coordination`
(docs/specification/contract.md section 11).

The SDK raises the events; nothing here decides. One emission at a time moves the machine: what is emitted beside it,
or answered by the SDK itself (ACK, NACK, ERROR), leaves it where it is. An emission that the gate has taken brings it
back to LOCAL_IDLE, and the next one is another lap.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from apc_agents.errors import AgentError
from apc_contracts.contract.machines import Machine

_THINKING = "IDEA_SYNTHESIS"


@dataclass(frozen=True, slots=True)
class LocalTransition:
    """One step of an invocation; `reason` is what a handler said when its own critique or check failed."""

    event: str
    from_state: str
    to_state: str
    reason: str = ""


class LocalCoordination:
    """The machine of one invocation; it has no transition before the handler emits or judges something."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._is_emitting = False
        self._state = machine.initial
        self.transitions: list[LocalTransition] = []
        """Every step so far; empty for a handler that emits nothing, which has no instance."""

    @property
    def state(self) -> str:
        """The state of the machine now."""
        return self._state

    @contextmanager
    def emission(self) -> Iterator["Emission"]:
        """Follow one emission from the idea on; one that starts beside another is not followed."""
        emission = Emission(None if self._is_emitting else self)
        if not emission.is_followed:
            yield emission
            return
        self._is_emitting = True
        try:
            self._take_idea()
            yield emission
        finally:
            self._is_emitting = False
            if self._state not in (self._machine.initial, _THINKING):
                self.halt()  # neither taken nor refused: nobody knows what became of it

    def critique_fail(self, reason: str) -> None:
        """Record the handler's own critique of an idea not emitted yet. Raises AgentError while it emits one."""
        self._check_idle("critique_fail")
        self._take_idea()
        self.take("critique_fail", reason)

    def local_checks_fail(self, reason: str) -> None:
        """Record the handler's own check of what it has built. Raises AgentError while it emits."""
        self._check_idle("local_checks_fail")
        self._take_idea()
        self.take("critique_pass")
        self.take("artifact_local_ready")
        self.take("local_checks_fail", reason)

    def halt(self) -> None:
        """End the instance, if there is one, by a cancel or an error."""
        if self.transitions and self._state not in self._machine.terminal:
            self.take("cancel_or_error")

    def take(self, event: str, reason: str = "") -> None:
        """Raise an event. Raises TransitionRefused: it is illegal here."""
        before, self._state = self._state, self._machine.step(self._state, event)
        self.transitions.append(LocalTransition(event, before, self._state, reason))

    def _take_idea(self) -> None:
        if self._state in self._machine.terminal:  # the handler goes on after an error: another instance
            self._state = self._machine.initial
        if self._state == self._machine.initial:
            self.take("task_assigned")
            self.take("context_complete")
        self.take("idea_packet_ready")

    def _check_idle(self, event: str) -> None:
        if self._is_emitting:
            raise AgentError(f"{event} while a packet is being emitted: await the emit first")


@dataclass(frozen=True, slots=True)
class Emission:
    """The stations of one emission."""

    _coordination: LocalCoordination | None

    @property
    def is_followed(self) -> bool:
        """Whether this emission moves the machine."""
        return self._coordination is not None

    def criticised(self, passed: bool) -> None:
        """Record that the local admit() has judged the packet."""
        self._take("critique_pass" if passed else "critique_fail")

    def built(self) -> None:
        """Record that bytes and hash are final, within the limits of the contract."""
        self._take("artifact_local_ready")
        self._take("local_checks_pass")

    def published(self) -> None:
        """Record that the broker has confirmed the packet."""
        self._take("packet_emitted")

    def answered(self, accepted: bool) -> None:
        """Record that the gate has the packet: by the broker's confirm, or by the ACK where one is required."""
        self._take("ack_accepted" if accepted else "ack_rejected_or_deferred")

    def _take(self, event: str) -> None:
        if self._coordination is not None:
            self._coordination.take(event)


NOT_FOLLOWED = Emission(None)
"""The SDK's own answers."""
