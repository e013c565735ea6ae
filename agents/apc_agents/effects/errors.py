"""Errors of effects.

AgentError
  EffectError
    EffectUnknown      (effect_id, since): claimed, and never recorded: it may have been made
    EffectResultLost   (effect_id): it was made, and what it gave could not be kept
    EffectSettled      (effect_id): there is nothing to settle: it is made, being made, or was never claimed

What `fn` itself raises goes through `ctx.once`. It raises EffectNotMade to say that nothing has happened.
"""

from datetime import datetime

from apc_agents.effects.model import EffectId
from apc_agents.errors import AgentError


class EffectError(AgentError):
    """An effect cannot be made, or its result not be given; `effect_id` names packet, agent and key."""

    def __init__(self, effect_id: EffectId, message: str) -> None:
        super().__init__(f"{effect_id} {message}")
        self.effect_id = effect_id


class EffectUnknown(EffectError):
    """Somebody began to make it and did not record how that ended: it may have been made, and is not made again.

    `since` is when it was claimed, `worker` by whom, `problem` what became of it; None when its worker died.
    """

    def __init__(self, effect_id: EffectId, since: datetime, worker: str, problem: str | None) -> None:
        why = problem or "gave no sign of life before it was recorded"
        super().__init__(
            effect_id,
            f"is unknown: {worker} began it at {since.isoformat(timespec='seconds')} and {why}. Find out whether it "
            "happened, then ctx.settle(key, result) or ctx.release(key), or `apc effect settle`",
        )
        self.since = since
        self.worker = worker
        self.problem = problem


class EffectResultLost(EffectError):
    """It was made, and will not be made again; what it gave could not be kept: `problem` says where and why."""

    def __init__(self, effect_id: EffectId, problem: str) -> None:
        super().__init__(
            effect_id,
            f"was made, but its result cannot be kept: {problem}. Give it one with ctx.settle(key, result), "
            "or `apc effect settle`",
        )
        self.problem = problem


class EffectSettled(EffectError):
    """There is nothing to settle."""


class EffectNotMade(Exception):
    """Raised by what makes an effect: nothing has happened, it may be tried again."""
