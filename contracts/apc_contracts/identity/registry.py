"""The registration of an agent: what an operator registered and the gate enforces."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from apc_contracts.vocabulary import PROTOCOL_VERSION, PROTOCOL_VERSIONS, PacketType, Right

JUDGING = frozenset({Right.DECIDE, Right.VALIDATE, Right.VETO})
"""Rights by which an agent judges what others do."""

SPEAKS_OLDEST = frozenset({PROTOCOL_VERSION})
"""What a registration speaks that names no version."""
SPEAKS_ALL = frozenset(PROTOCOL_VERSIONS)
ANY_SCHEMA = "*"
"""Among the schemas of a registration: its handlers take content of every schema."""
CLIENT = "client"
"""Role of the agents in whose name runs start sessions; their agent_ids begin with it."""
CLIENTS = "clients"
"""Their swarm."""
CALLER = "caller"
"""Role of those outside who come in through a door: of the client that starts in their name, and of the person."""


class Kind(StrEnum):
    """Who is registered. A person has no inbox: broker users named in `via` speak for it."""

    AGENT = "agent"
    PERSON = "person"


@dataclass(frozen=True, slots=True)
class Registration:
    """One row of the registry.

    `handles` holds the packet types the agent declared; the control types are handled by every agent
    whether listed or not. `public_keys` maps key id to a base64 Ed25519 public key.
    """

    agent_id: str
    broker_user: str
    role: str
    swarm_id: str
    rights: frozenset[Right] = frozenset()
    handles: frozenset[PacketType] = frozenset()
    public_keys: Mapping[str, str] = field(default_factory=dict)
    is_revoked: bool = False
    schemas: frozenset[str] = frozenset()
    """The schemas whose MESSAGEs it takes, or ANY_SCHEMA."""
    kind: Kind = Kind.AGENT
    via: frozenset[str] = frozenset()
    """Broker users that may speak beside `broker_user`: for a person; for an agent that moves, the one before."""
    speaks: frozenset[str] = SPEAKS_OLDEST
    """The protocol versions of packets that it reads."""
    host: str | None = None
    """The host in whose process it runs, with an inbox that its agents share; None = it has its own two queues."""
    allow_shared: bool = False
    """It may judge agents of its host, and be judged by them."""

    @property
    def is_judge(self) -> bool:
        """Whether it has a right by which it judges what others do."""
        return not JUDGING.isdisjoint(self.rights)

    @property
    def is_run_client(self) -> bool:
        """Whether this is the client of a run: it ends with the run, and has no inbox."""
        return self.swarm_id == CLIENTS and self.agent_id.startswith(f"{CLIENT}-") and not self.handles

    @property
    def has_inbox(self) -> bool:
        """Whether packets can be delivered to it: people and the clients of runs read the log."""
        return self.kind is Kind.AGENT and not self.is_run_client

    def accepts(self, schema_id: str) -> bool:
        """Return whether the agent takes MESSAGEs of this schema."""
        return schema_id in self.schemas or ANY_SCHEMA in self.schemas

    def speaks_as(self, user_id: str | None) -> bool:
        """Return whether this broker user may send in its name."""
        return user_id is not None and (user_id == self.broker_user or user_id in self.via)

    def has(self, right: Right) -> bool:
        """Return whether the operator granted this right."""
        return right in self.rights


# Who speaks for a person: never an agent, which could answer its own questions in the person's name.


def voice_objection(added: Registration, known: Iterable[Registration], trusted: Collection[str] = ()) -> str | None:
    """Return why a registration would let an agent speak for a person; None when it would not.

    Broker users in `trusted` may do so: the orchestrator's own and the operator's may register whomever they like. A
    door starts and answers as its callers with one broker user: those clients run no handlers, which could ask.
    """
    for other in known:
        if other.is_revoked or other.agent_id == added.agent_id or other.kind is added.kind:
            continue
        person, agent = (added, other) if added.kind is Kind.PERSON else (other, added)
        if person.role == CALLER and agent.role == CALLER and agent.is_run_client:
            continue
        for user in (agent.broker_user, *agent.via):
            if person.speaks_as(user) and user not in trusted:
                return (
                    f"the broker user {user} is that of agent {agent.agent_id}, which could answer its own "
                    f"questions as {person.agent_id}: name another user with --via, or give the agent its own"
                )
    return None


def move_objection(added: Registration, known: Registration | None) -> str | None:
    """Return why an agent may not have a second broker user; None when it moves from that one, or has no second one."""
    if added.kind is Kind.PERSON or not added.via:
        return None
    had = frozenset[str]() if known is None or known.is_revoked else known.via | {known.broker_user}
    if added.via <= had:
        return None
    return (
        f"agent {added.agent_id} did not have the broker user {', '.join(sorted(added.via - had))} before: leave it out"
    )


# Who runs beside whom. The agents of a host share its memory and its broker user: each can speak as the others.


class Neighbours:
    """Registrations that can speak against another one, found without a look at all the others.

    Args:
        known: those who are registered; more are added by `put`.
    """

    def __init__(self, known: Iterable[Registration] = ()) -> None:
        self._places: dict[str, list[dict[str, Registration]]] = {}
        self._of_kind: dict[Kind, dict[str, Registration]] = {kind: {} for kind in Kind}
        self._of_host: dict[tuple[str, bool], dict[str, Registration]] = {}
        for one in known:
            self.put(one)

    def put(self, one: Registration) -> None:
        """Take a registration over, in place of an earlier one of the same id."""
        for place in self._places.pop(one.agent_id, ()):
            del place[one.agent_id]
        if one.is_revoked:
            return
        places = [self._of_kind[one.kind]]
        if one.host is not None:
            places.append(self._of_host.setdefault((one.host, one.is_judge), {}))
        for place in places:
            place[one.agent_id] = one
        self._places[one.agent_id] = places

    def of_other_kind(self, one: Registration) -> Collection[Registration]:
        """Return all agents for a person, and all people for an agent."""
        return self._of_kind[Kind.AGENT if one.kind is Kind.PERSON else Kind.PERSON].values()

    @property
    def hosts(self) -> set[str]:
        """The hosts that have agents; from any thread."""
        return {host for (host, _), agents in list(self._of_host.items()) if agents}

    def on_host(self, host: str, *, are_judges: bool, but: str) -> Registration | None:
        """Return one of a host's agents, another than `but`, that is a judge or that is none; None without one."""
        of_host = self._of_host.get((host, are_judges), {})
        return next((one for agent_id, one in of_host.items() if agent_id != but), None)


def host_objection(added: Registration, neighbours: Neighbours) -> str | None:
    """Return why an agent may not run where its registration says; None when it may.

    The agents of a host have one broker user, that of no other host. Those who judge run on another host than those
    whom they judge, unless `allow_shared`.
    """
    user, host = added.broker_user, added.host
    if user.startswith("host.") and user != f"host.{host}":
        return f"agent {added.agent_id}: the broker user {user} is for the agents of that host alone: give it another"
    if host is None:
        return None
    for are_judges in (True, False):
        other = neighbours.on_host(host, are_judges=are_judges, but=added.agent_id)
        if other is None:
            continue
        if other.broker_user != user:
            return (
                f"agent {added.agent_id}: the agents of host {host} have the broker user {other.broker_user}, not "
                f"{user}: register it with that user, or on another host"
            )
        if are_judges is not added.is_judge and not added.allow_shared:
            judge, judged = (added, other) if added.is_judge else (other, added)
            return (
                f"agent {judge.agent_id} judges (decide, validate, veto), and {judged.agent_id} on host {host} could "
                "speak as it: put judges on another host, or allow it with --allow-shared"
            )
    return None
