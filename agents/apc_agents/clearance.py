"""How far an agent lets itself be led: the level of the one who caused a response, and what that one may trigger.

The sender of a delivery is the one that the gate has verified. An agent that acts for another one says so in
`metadata.provenance` of what it emits, so that nobody gains rights by asking through somebody who has more.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import Field, JsonValue, ValidationError

from apc_bus.telemetry import get_logger
from apc_contracts.agent import SecurityLevel
from apc_contracts.contract_model import Id, Model
from apc_contracts.packet import Packet
from apc_contracts.vocabulary import Right

LOWEST: Final = SecurityLevel.PUBLIC
"""The level of a sender that a clearance does not name."""
PROVENANCE: Final = "provenance"
"""The key in a packet's metadata."""
MAX_SENDERS: Final = 16
"""Senders that one provenance names; a longer chain has the lowest level."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sent a packet, as the gate has verified it; `swarm_id` and `rights` are empty where nobody verified them."""

    agent_id: str
    swarm_id: str | None = None
    rights: frozenset[Right] = frozenset()


@dataclass(frozen=True, slots=True)
class SenderRule:
    """The senders that may trigger a tool: those of one of the ids, of one of the swarms, or with one of the rights."""

    agents: Collection[str] = ()
    swarms: Collection[str] = ()
    rights: Collection[Right] = ()

    def allows(self, sender: Sender) -> bool:
        """Return whether the rule names the sender."""
        return (
            sender.agent_id in self.agents
            or sender.swarm_id in self.swarms
            or not sender.rights.isdisjoint(frozenset(self.rights))
        )


@dataclass(frozen=True, slots=True)
class Clearance:
    """The level of each sender: that of its id, else the highest of its swarm and rights, else the lowest there is."""

    agents: Mapping[str, SecurityLevel] = field(default_factory=dict)
    swarms: Mapping[str, SecurityLevel] = field(default_factory=dict)
    rights: Mapping[Right, SecurityLevel] = field(default_factory=dict)

    def level_of(self, sender: Sender) -> SecurityLevel:
        """Return the highest level at which the sender may make the agent act."""
        if (own := self.agents.get(sender.agent_id)) is not None:
            return own
        granted = [level for right, level in self.rights.items() if right in sender.rights]
        if sender.swarm_id is not None and sender.swarm_id in self.swarms:
            granted.append(self.swarms[sender.swarm_id])
        return max(granted, key=lambda level: level.rank, default=LOWEST)


class Provenance(Model):
    """For whom an agent has emitted a packet: everybody in the chain, and the lowest of their levels."""

    security_level: SecurityLevel
    senders: tuple[Id, ...] = Field(default=(), max_length=MAX_SENDERS)


@dataclass(frozen=True, slots=True)
class Trigger:
    """What caused a response: the chain of senders, the nearest first, and the highest level that they may use."""

    senders: tuple[Sender, ...]
    level: SecurityLevel

    @classmethod
    def of(cls, packet: Packet, rights: Iterable[Right], clearance: Clearance) -> "Trigger":
        """Return what a delivered packet may cause; a provenance that cannot be read has the lowest level."""
        sender = Sender(packet.sender.agent_id, packet.sender.swarm_id, frozenset(rights))
        level = clearance.level_of(sender)
        before = (packet.metadata or {}).get(PROVENANCE)
        if before is None:
            return cls((sender,), level)
        try:
            provenance = Provenance.model_validate(before, strict=False)
        except ValidationError:
            return cls((sender, Sender("_unknown")), LOWEST)
        chain = tuple(Sender(agent_id) for agent_id in provenance.senders if agent_id != sender.agent_id)
        levels = (level, provenance.security_level, *(clearance.agents.get(one.agent_id, level) for one in chain))
        return cls((sender, *chain), lowest(*levels))

    def may_use(self, rule: SenderRule | None) -> bool:
        """Return whether a rule allows everybody in the chain; None allows all."""
        return rule is None or all(rule.allows(sender) for sender in self.senders)

    def provenance(self, level: SecurityLevel) -> dict[str, JsonValue]:
        """Return what a packet says that is emitted at this level because of the trigger."""
        is_whole = len(self.senders) <= MAX_SENDERS
        permitted = lowest(self.level, level) if is_whole else LOWEST
        return {"security_level": permitted.value, "senders": [one.agent_id for one in self.senders[:MAX_SENDERS]]}


def say_withheld(tools: Iterable[str], trigger: Trigger, level: SecurityLevel) -> None:
    """Log the tools that a packet's senders may not use: the model is not told of them, and cannot say why."""
    names, senders = sorted(tools), [sender.agent_id for sender in trigger.senders]
    if names:
        _log.warning("tools_withheld", tools=names, senders=senders, level=level.value, fix=WITHHELD_FIX)


_log = get_logger("apc_agents")
WITHHELD_FIX: Final = "give the agent a clearance that names the sender or its swarm, or lower the level of the tool"
"""What to do where a packet's sender should be able to use a tool."""


def lowest(*levels: SecurityLevel) -> SecurityLevel:
    """Return the level that permits least."""
    return min(levels, key=lambda level: level.rank)


def highest(*levels: SecurityLevel) -> SecurityLevel:
    """Return the level that permits most."""
    return max(levels, key=lambda level: level.rank)
