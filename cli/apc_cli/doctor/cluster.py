"""Checks of a cluster of brokers, as each of its nodes sees it: who is there, what is replicated, what is bound.

A cluster that was split shows it in the management API alone: each side goes on to answer over AMQP, and its view
differs from that of the other.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from apc_bus.errors import BusUnavailable
from apc_bus.rabbit.management import BrokerNode, Management, ReplicatedQueue
from apc_bus.settings import BusSettings
from apc_bus.topology import Topology
from apc_cli.commands.agent_logins import open_management, vhost_of
from apc_cli.doctor.finding import Finding, ok, warning, wrong
from apc_contracts.text import numbered

CHECK = "cluster"
REPLICAS = 3
"""Members that a quorum queue has when it is made, if there are so many nodes."""
LATE_SECONDS = 6.0
"""A node tells who leads a queue up to 5 s after an election."""
NAMED = 3
"""Queues, bindings and nodes that one finding names; it counts the others."""
START = "start that node; if it runs, look at the network between the nodes and at its log"
HEAL = (
    "restart the nodes of the smaller side, one at a time (`rabbitmqctl stop_app`, `start_app`), then run `apc doctor` "
    "again; cluster_partition_handling = pause_minority"
)
APPLY = "apc topology apply"


@dataclass(frozen=True, slots=True)
class View:
    """What one node says."""

    host: str
    nodes: Sequence[BrokerNode]
    queues: Sequence[ReplicatedQueue]
    """Without streams of which it says nothing yet: they were made a moment ago."""
    bindings: frozenset[tuple[str, str, str]]
    """(exchange, queue, key)."""


async def look_at_cluster(settings: BusSettings, topology: Topology) -> list[Finding]:
    """Check nodes, partitions, replicas and bindings, asking the management API of every node that has one."""
    management = open_management(settings)
    if management is None:
        return [ok(CHECK, "partitions, replicas and bindings cannot be asked for without APC_MANAGEMENT_URL")]
    views, silent = await _views(management, settings)
    if any(_is_leaderless(queue, _running(view)) for view in views for queue in view.queues):
        await asyncio.sleep(LATE_SECONDS)
        views, silent = await _views(management, settings)
    return judge_views(views, topology, silent)


async def _views(management: Management, settings: BusSettings) -> tuple[list[View], list[str]]:
    """Return what each node says, and the hosts that do not answer.

    Raises:
        BusUnavailable: the API of APC_MANAGEMENT_URL itself does not answer.
    """
    views: list[View] = []
    silent: list[str] = []
    for host in dict.fromkeys((management.host, *_hosts(settings))):
        node = management.of_host(host)
        try:
            views.append(await _view(node, vhost_of(settings)))
        except BusUnavailable:
            if host == management.host:
                raise
            silent.append(host)
    return views, silent


async def _view(node: Management, vhost: str) -> View:
    queues = [queue for queue in await node.queues(vhost) if queue.members or not queue.is_stream]
    return View(node.host, await node.nodes(), queues, frozenset(await node.bindings(vhost)))


def _hosts(settings: BusSettings) -> list[str]:
    return [host for url in settings.amqp_nodes if (host := urlsplit(url).hostname) is not None]


def judge_views(views: Sequence[View], topology: Topology, silent: Sequence[str] = ()) -> list[Finding]:
    """Compare what the nodes say with each other and with the topology.

    `silent` are hosts of APC_AMQP_URL whose management API does not answer.
    """
    findings: list[Finding] = []
    for view in views:
        findings += _of_nodes(view)
    for view in views:
        findings += _of_bindings(view, topology)
    # What the nodes say of the queues is the same, unless the cluster is split: then the first says it.
    findings += _of_queues(views[0]) if views else ()
    findings = list(dict.fromkeys(findings))
    if silent:
        said = f"the management API of {', '.join(silent)} does not answer, so this node's view is not compared"
        findings.append(warning(CHECK, said, "open it to `apc doctor` on the port of APC_MANAGEMENT_URL"))
    members = numbered(len(views[0].nodes), "node") if views else "no node"
    return findings or [ok(CHECK, f"{members}, not split; every queue is replicated and bound")]


def _of_nodes(view: View) -> Iterator[Finding]:
    for node in view.nodes:
        if not node.is_running:
            yield wrong(CHECK, f"node {node.name} is down or cannot be reached, as {view.host} sees it", START)
        if node.partitions:
            lost = ", ".join(node.partitions)
            yield wrong(CHECK, f"the cluster is split: node {node.name} was cut off from {lost}", HEAL)
        for alarm in node.alarms:
            said = f"node {node.name} has a {alarm} alarm: no node takes publishes"
            yield wrong(CHECK, said, f"free {alarm} on that node")


def _of_bindings(view: View, topology: Topology) -> Iterator[Finding]:
    wanted = {(one.exchange, one.queue, one.key) for one in topology.bindings}
    missing = sorted(wanted - view.bindings)
    if missing:
        named = [f"{exchange} to {queue} ({key or 'any key'})" for exchange, queue, key in missing]
        what = numbered(len(missing), "binding is", "bindings are")
        yield wrong(CHECK, f"{what} missing on the node at {view.host}: {_some(named)}", APPLY)


def _running(view: View) -> frozenset[str]:
    return frozenset(node.name for node in view.nodes if node.is_running)


def _is_leaderless(queue: ReplicatedQueue, running: frozenset[str]) -> bool:
    online = running.intersection(queue.online)
    return (queue.leader is not None and queue.leader not in online) or len(online) * 2 <= len(queue.members)


def _of_queues(view: View) -> Iterator[Finding]:
    running = _running(view)
    least = min(REPLICAS, len(view.nodes))
    kinds: Mapping[str, list[str]] = {"leaderless": [], "few": [], "behind": []}
    for queue in view.queues:
        online = running.intersection(queue.online)
        if _is_leaderless(queue, running):
            kinds["leaderless"].append(queue.name)
        elif len(queue.members) < least:
            kinds["few"].append(f"{queue.name} (on {', '.join(sorted(queue.members))})")
        elif len(online) < len(queue.members):
            away = ", ".join(sorted(set(queue.members) - online))
            kinds["behind"].append(f"{queue.name} (without {away})")
    if names := kinds["leaderless"]:
        what = numbered(len(names), "queue has", "queues have")
        yield wrong(CHECK, f"{what} no leader with a majority, and takes nothing: {_some(names)}", START)
    if names := kinds["few"]:
        what = numbered(len(names), "queue is", "queues are")
        few = [queue for queue in view.queues if len(queue.members) < least]
        yield wrong(CHECK, f"{what} on fewer than {least} nodes: {_some(names)}", "; ".join(_growing(few, running)))
    if names := kinds["behind"]:
        what = numbered(len(names), "queue lacks", "queues lack")
        yield warning(CHECK, f"{what} a member that is away: {_some(names)}", START)


def _growing(few: Sequence[ReplicatedQueue], running: frozenset[str]) -> Iterator[str]:
    """Yield the commands that give queues and streams a further member; a stream does not grow with the queues."""
    queues = [queue for queue in few if not queue.is_stream]
    if queues:
        absent = sorted(running.difference(*(queue.members for queue in queues))) or sorted(running)
        yield f"rabbitmq-queues grow {absent[0]} all --vhost-pattern '.*' --queue-pattern '^apc\\.'"
    for stream in few:
        absent = sorted(running.difference(stream.members)) or sorted(running)
        if stream.is_stream:
            yield f"rabbitmq-streams add_replica {stream.name} {absent[0]} --vhost VHOST"


def _some(names: Sequence[str]) -> str:
    others = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {others} more" if others > 0 else "")
