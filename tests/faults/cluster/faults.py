"""The faults of the cluster run, each with the promise beside which its figure stands."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.faults.cluster.system import GATE, HOST, WORKER, WRITER, ClusterSystem
from tests.support.servers import PrivateNode

HEARTBEAT_SECONDS = 5.0
"""The default of the services."""
FREEZE_SECONDS = 30.0
ALARM_SECONDS = 20.0
DATABASE_SECONDS = 12.0
NODE_SECONDS, PROCESS_SECONDS = 15.0, 5.0
"""How long a killed node or process is away."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A figure of the fault's window and its bound; docs/explanation/promises.md."""

    figure: str
    seconds: float
    words: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is done to a running system and made good again.

    `act` returns what was hit. None as promise: the fault takes away what the bus needs, so there is none.
    """

    name: str
    title: str
    act: Callable[[ClusterSystem], Awaitable[str]]
    promise: Promise | None
    settle_seconds: float = 12.0
    """Load afterwards: the figures of the fault are those until the next one."""


DEAD = Promise("accept_wait", 1.0, "dead process")
DEAD_WRITER = Promise("commit_wait", 1.0, "dead process")
DEAD_WORKER = Promise("handle_wait", 1.0, "dead process")
FROZEN = Promise("accept_wait", 3 * HEARTBEAT_SECONDS, "frozen process, 3 heartbeats")
FROZEN_HOST = Promise("handle_wait", 12.0, "frozen host")
DEAD_NODE = Promise("start_gap", 5.0, "dead broker node")
SILENT_NODE = Promise("start_gap", 3 * HEARTBEAT_SECONDS + 5.0, "silent broker node, 3 heartbeats + 5 s")
"""Its clients notice after 3 heartbeats; the other nodes have declared it down by then (`net_ticktime`)."""


async def _kill_node(system: ClusterSystem, node: PrivateNode) -> str:
    await system.servers.kill([node])
    await asyncio.sleep(NODE_SECONDS)
    await system.servers.start([node])
    return node.name


async def kill_leader(system: ClusterSystem) -> str:
    """SIGKILL for the node that leads the queues; started again after a while."""
    return await _kill_node(system, await system.servers.leader())


async def kill_follower(system: ClusterSystem) -> str:
    """SIGKILL for the node that leads fewest queues; started again after a while."""
    return await _kill_node(system, await system.servers.follower())


async def _kill_active(system: ClusterSystem, kind: str) -> str:
    process = await system.active(kind)
    await process.kill()
    await asyncio.sleep(PROCESS_SECONDS)
    await process.start()
    return process.name


async def kill_gate(system: ClusterSystem) -> str:
    """SIGKILL for the gate that holds the shards."""
    return await _kill_active(system, GATE)


async def kill_writer(system: ClusterSystem) -> str:
    """SIGKILL for the log writer that writes."""
    return await _kill_active(system, WRITER)


async def kill_workers(system: ClusterSystem) -> str:
    """SIGKILL for one of the two workers, and for the host that works."""
    workers = [system.processes[f"{WORKER}-1"], await system.active(HOST)]
    await asyncio.gather(*(worker.kill() for worker in workers))
    await asyncio.sleep(PROCESS_SECONDS)
    await system.start(workers)
    return " ".join(worker.name for worker in workers)


async def stop_database(system: ClusterSystem) -> str:
    """Stop Postgres without a checkpoint; started again after a while."""
    await asyncio.to_thread(system.servers.postgres.stop)
    await asyncio.sleep(DATABASE_SECONDS)
    await asyncio.to_thread(system.servers.postgres.start)
    return "Postgres"


async def _freeze_active(system: ClusterSystem, kind: str) -> str:
    process = await system.active(kind)
    process.signal(signal.SIGSTOP)
    await asyncio.sleep(FREEZE_SECONDS)
    process.signal(signal.SIGCONT)
    return process.name


async def freeze_gate(system: ClusterSystem) -> str:
    """SIGSTOP for the gate that holds the shards, and SIGCONT."""
    return await _freeze_active(system, GATE)


async def freeze_host(system: ClusterSystem) -> str:
    """SIGSTOP for the host that works, and SIGCONT."""
    return await _freeze_active(system, HOST)


async def freeze_leader(system: ClusterSystem) -> str:
    """SIGSTOP for the node that leads the queues, and SIGCONT."""
    node = await system.servers.leader()
    node.suspend()
    try:
        await asyncio.sleep(FREEZE_SECONDS)
    finally:
        node.resume()
    await system.servers.join(node)
    return node.name


async def cut_off_leader(system: ClusterSystem) -> str:
    """Lose every packet between the node that leads the queues and the two others; clients reach all three."""
    node = await system.servers.leader()
    system.servers.cut_off(node)
    try:
        await asyncio.sleep(FREEZE_SECONDS)
    finally:
        system.servers.reconnect(node)
    await system.servers.join(node)
    return node.name


async def raise_alarm(system: ClusterSystem) -> str:
    """Give the broker less memory than it has in use: it blocks every publisher of the cluster."""
    node = system.servers.nodes[1]
    await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.0001")
    try:
        await asyncio.sleep(ALARM_SECONDS)
    finally:
        await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.4")
    return node.name


async def kill_everything(system: ClusterSystem) -> str:
    """SIGKILL for every process but the driver, every node and Postgres; all are started again at once."""
    services, nodes = system.services, system.servers.nodes
    await asyncio.gather(*(process.kill() for process in services), system.servers.kill(nodes))
    await asyncio.to_thread(system.servers.postgres.stop)
    await asyncio.gather(
        system.servers.start(nodes), asyncio.to_thread(system.servers.postgres.start), system.start(services)
    )
    return "everything"


FAULTS = (
    Fault("kill-leader", "kill -9 of the leading broker node", kill_leader, DEAD_NODE),
    Fault("kill-gate", "kill -9 of the active gate", kill_gate, DEAD),
    Fault("kill-log-writer", "kill -9 of the active log writer", kill_writer, DEAD_WRITER),
    Fault("kill-workers", "kill -9 of a worker and of the active host", kill_workers, DEAD_WORKER, 20.0),
    Fault("stop-postgres", f"Postgres away for {DATABASE_SECONDS:g} s", stop_database, None, 15.0),
    Fault("freeze-gate", f"SIGSTOP of the active gate, {FREEZE_SECONDS:g} s", freeze_gate, FROZEN),
    Fault("freeze-host", f"SIGSTOP of the active host, {FREEZE_SECONDS:g} s", freeze_host, FROZEN_HOST),
    Fault("kill-follower", "kill -9 of a following broker node", kill_follower, DEAD_NODE),
    Fault("memory-alarm", f"memory alarm, {ALARM_SECONDS:g} s", raise_alarm, None),
    Fault("freeze-leader", f"SIGSTOP of the leading node, {FREEZE_SECONDS:g} s", freeze_leader, SILENT_NODE, 20.0),
    Fault("partition", f"leading node cut off, {FREEZE_SECONDS:g} s", cut_off_leader, SILENT_NODE, 20.0),
    Fault("full-stop", "kill -9 of everything, restart", kill_everything, None, 45.0),
)


def chosen(names: str | None) -> list[Fault]:
    """Return the faults of these names, separated by commas, in their order; default all.

    Raises:
        ValueError: there is no such fault.
    """
    if not names:
        return list(FAULTS)
    known = {fault.name: fault for fault in FAULTS}
    wanted = [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"no such fault: {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in wanted]
