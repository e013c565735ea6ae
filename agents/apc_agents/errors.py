"""Errors of the agent SDK.

ApcError
  AgentError
    AgentInvalid        an agent or one of its handlers cannot be used; found when it is built
    AgentNotFound       `module:agent` leads to no agent
    AgentKeyUnusable      the signing key cannot be read or written, or is no Ed25519 key
    EmitError
      EmitRefused       (code, rule, path, message, remedy): the contract refuses the packet
      EmitRejected      (nack): the recipient answered NACK to an emit that asked for an ACK
      EmitTimeout       no ACK in time for an emit that asked for one
      EmitUnconfirmed   the broker did not confirm in time; publishing the same packet again is safe
    StateError
      StateInvalid      ctx.state holds something that JSON does not know
      StateStale        another worker has saved this document since it was read
      StateUnavailable  the state store does not answer
    ContextError        apc_agents.context.turns
    ActionError         apc_agents.tools
    EffectError         apc_agents.effects
    WaitError
      AskTimeout            nobody has answered a question or request in time
      RequestFailed         the agent that was asked refused, failed, or gave no such result
      ContinuationDiverged  a handler that goes on does not repeat what is recorded of it
    HandlerFailed       a handler raised in a test client; the cause is its exception

A handler itself raises `Reject` or `Retry` to end its packet in another way than by an outcome.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from apc_contracts.errors import ApcError
from apc_contracts.judging.verdict import remedy_of

if TYPE_CHECKING:
    from apc_contracts.packet import Packet
    from apc_contracts.payloads.by_type import NackPayload


class AgentError(ApcError):
    """Something went wrong in an agent or its worker."""


class AgentKeyUnusable(AgentError):
    """The key with which an agent signs cannot be read or written, or is no Ed25519 key."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"the agent's signing key {where} cannot be used: {reason}; it must be Ed25519 in PEM (PKCS8)")
        self.where = where


class AgentInvalid(AgentError):
    """An agent or one of its handlers cannot be used."""


class AgentNotFound(AgentError):
    """`module:agent` leads to no agent."""


class EmitError(AgentError):
    """A packet was not emitted, or not acknowledged."""


class EmitRefused(EmitError):
    """The contract refuses the packet.

    `code` (docs/specification/contract.md section 12), `path` (dotted with [i], `$` = whole) and `message` say why,
    `rule` names the rule, and `remedy` says what corrects the packet. A rule of the team also gives its own sentence
    (`say`), its expression (`requires`) and the `values` that it read. `retry_after_ms` is set when another packet may
    get through after that time (QUOTA_EXCEEDED, OVERLOADED).
    """

    def __init__(
        self,
        code: str,
        path: str,
        message: str,
        retry_after_ms: int | None = None,
        *,
        rule: str = "",
        say: str | None = None,
        requires: str | None = None,
        values: Mapping[str, Any] | None = None,
        remedy: str | None = None,
    ) -> None:
        why = f"{code} at {path}: {message}"
        super().__init__(f"{why.removesuffix('.')}. Remedy: {remedy}" if remedy else why)
        self.code = code
        self.rule = rule
        self.path = path
        self.message = message
        self.retry_after_ms = retry_after_ms
        self.say = say
        self.requires = requires
        self.values = dict(values or {})
        self.remedy = remedy or remedy_of(code)

    @classmethod
    def of(cls, refusal: Mapping[str, Any]) -> "EmitRefused":
        """Return the error of a refusal in its JSON form, as a NACK of the gate has it in `metadata.refusal`."""

        def text(name: str) -> str | None:
            return None if refusal.get(name) is None else str(refusal[name])

        wait, values = refusal.get("retry_after_ms"), refusal.get("values")
        return cls(
            text("code") or "REFUSED",
            text("path") or "$",
            text("message") or "the gate refused the packet",
            wait if isinstance(wait, int) else None,
            rule=text("rule") or "",
            say=text("say") or (text("message") if refusal.get("requires") is not None else None),
            requires=text("requires"),
            values=values if isinstance(values, Mapping) else None,
            remedy=text("remedy"),
        )


class EmitRejected(EmitError):
    """The recipient answered NACK; `nack` is the packet that said so."""

    def __init__(self, nack: "Packet[NackPayload]") -> None:
        super().__init__(f"{nack.sender.agent_id} answered {nack.payload.ack_status}: {nack.payload.reason}")
        self.nack = nack


class EmitTimeout(EmitError):
    """No ACK came in time: the packet is published, what became of it is in the log.

    `missing` maps agent_id to where the packet stands for it; empty when not even the orchestrator has answered.
    """

    def __init__(self, packet_id: UUID, why: str, missing: Mapping[str, str] | None = None) -> None:
        super().__init__(f"no ACK for packet {packet_id}: {why}")
        self.packet_id = packet_id
        self.missing = dict(missing or {})


class EmitUnconfirmed(EmitError):
    """The broker did not confirm in time: the packet may be stored. Publishing it again is safe."""

    def __init__(self, message_id: str, why: str) -> None:
        super().__init__(f"message {message_id} got no confirm: {why}")
        self.message_id = message_id


class StateError(AgentError):
    """The state of an agent cannot be read or saved."""


class StateInvalid(StateError):
    """ctx.state holds something that JSON does not know."""


class StateStale(StateError):
    """Another worker has saved this document since it was read."""

    def __init__(self, agent_id: str, session_id: str, revision: int) -> None:
        super().__init__(f"state of {agent_id} in session {session_id} has left revision {revision}")
        self.revision = revision


class StateUnavailable(StateError):
    """The state store does not answer."""


class WaitError(AgentError):
    """A handler's wait did not end with an answer."""


class AskTimeout(WaitError):
    """Nobody has answered a question in time."""

    def __init__(self, packet_id: UUID) -> None:
        super().__init__(f"nobody has answered the question {packet_id} in time")
        self.packet_id = packet_id


class RequestFailed(WaitError):
    """The agent that was asked gave no result; `by` is the agent, `reason` what it said."""

    def __init__(self, packet_id: UUID, by: str, reason: str) -> None:
        super().__init__(f"request {packet_id} failed at {by}: {reason}")
        self.packet_id = packet_id
        self.by = by
        self.reason = reason


class ContinuationDiverged(WaitError):
    """A handler that goes on after a wait does not repeat what is recorded of it: nothing is guessed."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"the handler has changed since it began to wait: {where}. Run the handler as it was and requeue this "
            "delivery, or discard it"
        )


class HandlerFailed(AgentError):
    """A handler raised; `__cause__` is what it raised."""


class Retry(Exception):
    """Raised by a handler: hand this packet over once more, not before `after` has passed.

    Without a time, or with 0, the orchestrator waits longer after each attempt (the contract's back-off, with jitter).
    After the packet's retry_limit (default the contract's, 10) its delivery is a dead letter, whose error says so.

    Raises:
        ValueError: `after` is negative.
    """

    def __init__(self, after: timedelta = timedelta(0), reason: str = "retry") -> None:
        if after < timedelta(0):
            raise ValueError(f"Retry(after={after}): a delay cannot be negative; leave it out for the gate's back-off")
        super().__init__(reason)
        self.after = after
        self.reason = reason


class Reject(Exception):
    """Raised by a handler: this packet is refused; its sender gets a NACK with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
