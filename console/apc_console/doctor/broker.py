"""Checks of the broker: each node, the topology, the queues that must not fill up."""

from collections.abc import Iterable, Sequence
from urllib.parse import urlsplit

from apc_bus.errors import BusUnavailable
from apc_bus.port import QueueDepth
from apc_bus.rabbit import Inspection, inspect_rabbit, takes_message_of
from apc_bus.rabbit.connections import Nodes, Timing
from apc_bus.topology import Topology, gate_queue
from apc_console.connections.broker import CONNECT_PATIENCE
from apc_console.doctor.finding import Finding, ok, warning, wrong

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
        parts = urlsplit(url)
        name = f"{parts.hostname}:{parts.port or (5671 if parts.scheme == 'amqps' else 5672)}"
        try:
            link = await Nodes([url], _timing()).connect("apc doctor")
        except BusUnavailable as error:
            findings.append(wrong("broker", str(error), "start RabbitMQ on that node, or correct APC_AMQP_URL"))
        else:
            await link.close(CONNECT_PATIENCE.total_seconds())
            findings.append(ok("broker", f"{name} answers"))
    return findings


async def inspect_broker(url: str, topology: Topology) -> Inspection:
    """Return what the broker holds of the topology. Raises BusUnavailable."""
    return await inspect_rabbit(url, topology, timing=_timing())


def judge_topology(found: Inspection) -> list[Finding]:
    """Check what is missing or differs from the topology of settings and registry."""
    findings = [wrong("topology", _missing(found.missing), APPLY)] if found.missing else []
    findings += [
        wrong("topology", f"{what} differs", f"let it drain, delete it, then {APPLY}") for what in found.differing
    ]
    if not found.is_compared:
        findings.append(
            warning(
                "topology",
                "this user may not declare: types and arguments were not compared",
                "set APC_TOPOLOGY_URL to the deploy-time user",
            )
        )
    return findings or [ok("topology", "every exchange and queue is there as declared (bindings cannot be asked for)")]


def _missing(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} is missing"
    others = len(names) - NAMED
    named = ", ".join(names[:NAMED]) + (f" and {others} more" if others > 0 else "")
    return f"{len(names)} exchanges and queues are missing: {named}"


async def look_at_message_size(url: str, prefetch: int) -> list[Finding]:
    """Check that the broker refuses messages larger than needed: a gate would hold them. Raises BusUnavailable."""
    limit = f"{LARGEST_MESSAGE >> 20} MiB"
    if not await takes_message_of(url, LARGEST_MESSAGE + 1, timing=_timing()):
        return [ok("message size", f"messages beyond {limit} are refused")]
    what = f"messages beyond {limit} are taken: a gate holds up to {prefetch} of them in memory"
    return [warning("message size", what, f"max_message_size = {LARGEST_MESSAGE} in rabbitmq.conf")]


def judge_gates(depths: dict[str, QueueDepth], shards: Iterable[int]) -> list[Finding]:
    """Check that each shard has a gate that judges its inputs."""
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
