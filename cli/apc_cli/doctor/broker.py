"""Checks of the broker: each node, the topology, the queues that must not fill up."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from shlex import quote
from urllib.parse import urlsplit

from apc_bus.errors import BusUnavailable
from apc_bus.port import QueueDepth
from apc_bus.rabbit import Inspection, inspect_rabbit, takes_message_of
from apc_bus.rabbit.administration import BrokerRights, probe_rights
from apc_bus.rabbit.connections import Nodes, Timing
from apc_bus.rabbit.definitions import Permission, permissions
from apc_bus.rabbit.management import Holding, Management
from apc_bus.settings import BusSettings
from apc_bus.topology import INGRESS, INTER_AGENT, LOG, RECEIPTS, RETRY, Topology, build_topology, gate_queue
from apc_cli.commands.agent_logins import open_management, own_users, vhost_of
from apc_cli.commands.topology import shared_users
from apc_cli.connections import CONNECT_PATIENCE, broker_user
from apc_cli.doctor.finding import Finding, ok, warning, wrong
from apc_contracts.text import numbered

APPLY = "apc topology apply"
NAMED = 3
"""Missing exchanges and queues that one finding names; it counts the others."""
LARGEST_MESSAGE = 2 << 20
"""The size of a message that the broker must accept, a log batch; as in deploy/rabbitmq.conf."""


def _timing() -> Timing:
    seconds = CONNECT_PATIENCE.total_seconds()
    return Timing(connect=seconds, patience=seconds)


async def look_at_nodes(urls: Sequence[str]) -> list[Finding]:
    """Check that each node of APC_AMQP_URL accepts a connection with these credentials."""
    findings = []
    for url in urls:
        name = _name(url)
        try:
            link = await Nodes([url], _timing()).connect("apc doctor")
        except BusUnavailable as error:
            fix = "start RabbitMQ on that node, or correct APC_AMQP_URL"
            findings.append(wrong("broker", f"{name} cannot be reached: {error}", fix))
        else:
            await link.close()
            findings.append(ok("broker", f"{name} answers"))
    return findings


def _name(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.hostname}:{parts.port or (5671 if parts.scheme == 'amqps' else 5672)}"


async def look_at_other_node(url: str, shards: int) -> list[Finding]:
    """Check that another node knows what every shard needs: a node that left its cluster may not. None when it does.

    A node that does not answer was reported before.
    """
    try:
        found = await inspect_rabbit(url, build_topology(shards), timing=_timing())
    except BusUnavailable:
        return []
    return [wrong("topology", f"on {_name(url)} {_missing(found.missing)}", APPLY)] if found.missing else []


async def inspect_broker(url: str, topology: Topology) -> Inspection:
    """Return what the broker holds of the topology. Raises BusUnavailable."""
    return await inspect_rabbit(url, topology, timing=_timing())


def judge_topology(inspection: Inspection) -> list[Finding]:
    """Check what is missing or differs from the topology of settings and registry."""
    findings = [wrong("topology", _missing(inspection.missing), APPLY)] if inspection.missing else []
    findings += [
        wrong("topology", f"{what} differs", f"let it drain, delete it, then {APPLY}") for what in inspection.differing
    ]
    if not inspection.is_compared:
        findings.append(
            warning(
                "topology",
                "this user may not declare: types and arguments were not compared",
                "set APC_TOPOLOGY_URL to the deploy-time user",
            )
        )
    return findings or [ok("topology", "every exchange and queue is there as declared")]


def _missing(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} is missing"
    others = len(names) - NAMED
    named = ", ".join(names[:NAMED]) + (f" and {others} more" if others > 0 else "")
    return f"{len(names)} exchanges and queues are missing: {named}"


async def look_at_message_size(url: str, prefetch: int) -> list[Finding]:
    """Check that the broker refuses larger messages than needed: orchestrators hold them. Raises BusUnavailable."""
    limit = f"{LARGEST_MESSAGE >> 20} MiB"
    if not await takes_message_of(url, LARGEST_MESSAGE + 1, timing=_timing()):
        return [ok("message size", f"messages beyond {limit} are refused")]
    what = f"messages beyond {limit} are taken: a gate holds up to {prefetch} of them in memory"
    return [warning("message size", what, f"max_message_size = {LARGEST_MESSAGE} in rabbitmq.conf")]


def judge_gates(depths: dict[str, QueueDepth], shards: Iterable[int]) -> list[Finding]:
    """Check that each shard has an orchestrator that judges its inputs."""
    findings, without_queue = [], []
    for shard in shards:
        depth = depths.get(gate_queue(shard))
        if depth is None:
            without_queue.append(str(shard))
        elif depth.consumers == 0:
            say = wrong if depth.messages else warning
            waiting = f"{depth.messages} inputs wait and " if depth.messages else ""
            findings.append(say("gate", f"shard {shard}: {waiting}no gate runs", "apc serve orchestrator"))
    if without_queue:
        what = f"no gate can run without its queue, which is missing: shard {', '.join(without_queue)}"
        findings.append(warning("gate", what, f"{APPLY}, then apc serve orchestrator"))
    return findings or [ok("gate", "every shard has a gate")]


# Checks of broker users: who may speak for whom, and whether their rights match their jobs.

IMPERSONATOR = "impersonator"
"""The tag of users whose messages may carry any user_id (RabbitMQ documentation, "Validated User-ID")."""
MOST_UNACKNOWLEDGED = 10_000
"""Far above what a worker has in hand."""
OWN = "with APC_MANAGEMENT_URL `apc agent add` gives each its own user; docs/how-to/security.md"
MEND = "`apc topology apply` with APC_MANAGEMENT_URL, or import what `apc topology export` writes"


async def look_at_users(settings: BusSettings, topology: Topology) -> list[Finding]:
    """Check for shared users, users that may impersonate others, and rights that differ from the topology's."""
    findings = [warning("users", sentence, OWN) for sentence in shared_users(topology)]
    try:
        management = open_management(settings)
        if management is None:
            return [*findings, ok("users", "tags and rights cannot be asked for without APC_MANAGEMENT_URL")]
        findings += await _look(settings, management, topology)
    except BusUnavailable as error:
        findings.append(wrong("users", str(error), "correct APC_MANAGEMENT_URL"))
    return findings or [ok("users", "nobody can speak for another; rights are as exported")]


async def _look(settings: BusSettings, management: Management, topology: Topology) -> list[Finding]:
    tags = await management.users()
    findings = [
        wrong(
            "users",
            f"broker user {user} has the tag {IMPERSONATOR}: it can send in anybody's name",
            f"rabbitmqctl set_user_tags {quote(user)}",
        )
        for user in sorted(tags)
        if IMPERSONATOR in tags[user]
    ]
    held = await management.permissions(vhost_of(settings))
    expected = permissions(topology)
    for user in own_users(settings, management):
        expected.pop(user, None)  # deployments where all share one user, or the deploy-time users
    agents = {agent.user for agent in topology.agents}
    kept = await management.holdings(vhost_of(settings))
    return [*findings, *_compare(expected, held, agents), *_judge_holdings(kept, topology)]


def _judge_holdings(kept: Mapping[str, Holding], topology: Topology) -> Iterator[Finding]:
    """Yield agents for whom the broker keeps what no worker needs: when it is full, it takes nothing from anybody."""
    for agent in topology.agents:
        held = kept.get(agent.user)
        if held is None:
            continue
        fix = f"apc agent revoke {quote(agent.agent_id)}"
        if held.uncommitted:
            what = numbered(held.uncommitted, "message")
            said = f"the broker keeps {what} of user {agent.user} in transactions, which no worker uses"
            yield wrong("users", said, fix)
        if held.unacknowledged > MOST_UNACKNOWLEDGED:
            said = f"the broker keeps {held.unacknowledged} deliveries to user {agent.user}, who acknowledges none"
            yield wrong("users", said, fix)


def _compare(expected: Mapping[str, Permission], held: Mapping[str, Permission], agents: set[str]) -> Iterator[Finding]:
    for user, permission in expected.items():
        if user not in held and user in agents:
            yield wrong("users", f"broker user {user} of a registered agent may not use this virtual host", MEND)
        elif user in held and held[user] != permission:
            yield warning("users", f"broker user {user} has other rights than its job needs: {held[user]}", MEND)


# Checks of our own broker user's permissions, by trying; `users` asks the management API about all users.

PROBED = (INGRESS, RECEIPTS, INTER_AGENT, LOG, RETRY)
"""Exchanges with keys that lead nowhere."""
BEYOND_AN_AGENT = (INTER_AGENT, LOG)
"""Exchanges that bypass the gate: an agent must not write to them."""
FIX = "`apc topology apply` with APC_MANAGEMENT_URL, or `apc topology export`, gives each its own user"


async def look_at_permissions(settings: BusSettings, topology: Topology) -> list[Finding]:
    """Check that the user of APC_AMQP_URL has no more rights than a job needs.

    Raises BusUnavailable, TopologyInvalid.
    """
    user = broker_user(settings)
    rights = await probe_rights(settings.amqp_nodes[0], PROBED)
    return [_judge(user, rights, is_known=user in permissions(topology))]


def _judge(user: str, rights: BrokerRights, *, is_known: bool) -> Finding:
    named = "may configure; " if rights.may_configure else ""
    said = f"{user} {named}writes {', '.join(sorted(rights.may_write)) or 'nothing'} (reading cannot be tried)"
    goes_round = any(name in rights.may_write for name in BEYOND_AN_AGENT)
    if not is_known and (rights.may_configure or goes_round):
        return warning("permissions", f"{said}: more than any one job needs", FIX)
    return ok("permissions", said)
