"""What `apc doctor` says of a cluster: by the views of its nodes, and of idle agents, undeliverable packets, alerts."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import orjson
import pytest
from tests.persister.conftest import bench, pool
from tests.support.log import LogBench, hop, packet_entry, session_row

from apc_bus.errors import BusUnavailable
from apc_bus.port import QueueDepth
from apc_bus.rabbit.connections import Nodes, Timing
from apc_bus.rabbit.management import BrokerNode, Management, ReplicatedQueue
from apc_bus.settings import BusSettings
from apc_bus.topology import agent_queue, build_topology, host_queue
from apc_cli.connections import topology_url
from apc_cli.doctor import agents
from apc_cli.doctor.agents import look_at_agents, look_at_dead_letters
from apc_cli.doctor.cluster import View, judge_views
from apc_cli.doctor.finding import Finding, Status
from apc_cli.doctor.log import look_at_projections, look_at_unstored
from apc_log.batch import ConflictEntry
from apc_log.queries.health import recent_work

__all__ = ["bench", "pool"]

TOPOLOGY = build_topology(1)
NAMES = ("rabbit@a", "rabbit@b", "rabbit@c")
NODES = tuple(BrokerNode(name, is_running=True, partitions=(), alarms=()) for name in NAMES)
QUEUE = ReplicatedQueue("apc.log.0", NAMES, NAMES, "rabbit@a")
BINDINGS = frozenset((one.exchange, one.queue, one.key) for one in TOPOLOGY.bindings)
WHOLE = View("a", NODES, (QUEUE,), BINDINGS)


def judged(*views: View) -> list[Finding]:
    return [one for one in judge_views(views, TOPOLOGY) if one.status is not Status.OK]


def test_a_whole_cluster_is_well() -> None:
    (finding,) = judge_views((WHOLE, replace(WHOLE, host="b")), TOPOLOGY)
    assert (finding.status, finding.finding) == (
        Status.OK, "3 nodes, not split; every queue is replicated and bound",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ({"is_running": False}, "node rabbit@b is down or cannot be reached, as a sees it"),
        ({"partitions": ("rabbit@c",)}, "the cluster is split: node rabbit@b was cut off from rabbit@c"),
        ({"alarms": ("disk",)}, "node rabbit@b has a disk alarm"),
    ],
)
def test_a_node_that_is_away_cut_off_or_full_is_named(nodes: dict[str, Any], words: str) -> None:
    found = judged(replace(WHOLE, nodes=(NODES[0], replace(NODES[1], **nodes), NODES[2]), queues=()))
    assert [(one.status, one.finding.startswith(words)) for one in found] == [(Status.WRONG, True)]


@pytest.mark.parametrize(
    ("queue", "status", "words", "fix"),
    [
        ({"leader": ""}, Status.WRONG, "no leader with a majority", "start that node"),
        ({"online": NAMES[:1]}, Status.WRONG, "no leader with a majority", "start that node"),
        (
            {"members": NAMES[:1], "online": NAMES[:1]},
            Status.WRONG,
            "1 queue is on fewer than 3 nodes: apc.log.0 (on rabbit@a)",
            "rabbitmq-queues grow rabbit@b all",
        ),
        ({"online": NAMES[:2]}, Status.WARNING, "apc.log.0 (without rabbit@c)", "start that node"),
    ],
)
def test_a_queue_that_is_not_replicated_is_named(queue: dict[str, Any], status: Status, words: str, fix: str) -> None:
    (found,) = judged(replace(WHOLE, queues=(replace(QUEUE, **queue),)))
    assert found.status is status and words in found.finding and found.fix.startswith(fix)


def test_a_stream_whose_leader_is_not_told_is_judged_by_its_members() -> None:
    """RabbitMQ 3.10 names no leader of a stream."""
    stream = ReplicatedQueue("apc.substrate.stream", NAMES, NAMES, None, is_stream=True)
    assert judged(replace(WHOLE, queues=(stream,))) == []
    (lost,) = judged(replace(WHOLE, queues=(replace(stream, online=NAMES[:1]),)))
    assert lost.status is Status.WRONG and "no leader with a majority" in lost.finding


def test_a_stream_gets_another_command_than_the_queues() -> None:
    stream = ReplicatedQueue("apc.substrate.stream", NAMES[:1], NAMES[:1], NAMES[0], is_stream=True)
    (found,) = judged(replace(WHOLE, queues=(QUEUE, stream)))
    assert found.fix == "rabbitmq-streams add_replica apc.substrate.stream rabbit@b --vhost VHOST"


def test_a_binding_that_one_node_lacks_is_named() -> None:
    """Amid a split one side may have lost it; what is published there comes back."""
    lacking = replace(WHOLE, host="b", bindings=frozenset(sorted(BINDINGS)[1:]))
    (found,) = judged(WHOLE, lacking)
    assert found.status is Status.WRONG and found.finding.startswith("1 binding is missing on the node at b: ")


def test_a_node_whose_api_is_closed_is_named() -> None:
    (found,) = [one for one in judge_views((WHOLE,), TOPOLOGY, ["c"]) if one.status is Status.WARNING]
    assert "the management API of c does not answer" in found.finding


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("http://u:p%40w@a:15672", "http://u:p%40w@b.example:15672/api"),
        ("https://u:p@[::1]:15671/mq", "https://u:p@b.example:15671/mq/api"),
    ],
)
def test_the_api_of_another_node_has_the_same_port_and_credentials(url: str, other: str) -> None:
    management = Management(url).of_host("b.example")
    assert management._base == other.replace("u:p%40w@", "").replace("u:p@", "")
    assert management._authorization == Management(url)._authorization


def test_the_deploy_time_user_may_have_several_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APC_AMQP_URL", "amqp://u:p@a/,amqp://u:p@b/")
    monkeypatch.setenv("APC_TOPOLOGY_URL", "amqp://t:s3cret@a/v, amqp://t:s3cret@b/v")
    nodes = Nodes([topology_url(BusSettings())], Timing())
    assert (nodes.user, nodes.scope) == ("t", "a:5672/v b:5672/v")


@pytest.mark.parametrize("url", ["amqp://t:s3cret/x@a:1/", "amqp://t:s3cret@a:99999/", "amqp://t:s3cret@/"])
def test_no_url_that_cannot_be_read_is_printed(url: str) -> None:
    with pytest.raises(BusUnavailable) as refused:
        Nodes([f"amqp://t:s3cret@a/v,{url}"], Timing())
    assert "s3cret" not in str(refused.value) and "%-escapes" in str(refused.value)


def a_row(agent_id: str, seen: datetime | None = None) -> dict[str, Any]:
    row = {"agent_id": agent_id, "is_revoked": False, "is_alive": False, "handles": ["IDEA"], "last_seen": seen}
    return {**row, "host": None, "is_host_present": None, "host_changed_at": None}


@pytest.mark.parametrize(
    ("consumers", "is_here", "says"),
    [
        (0, False, "host h0: nobody consumes its queues, gone for 60 s, so that 2 agents cannot work; 3 packets wait"),
        (0, True, "host h0: nobody consumes its queues, so that 2 agents cannot work; 3 packets wait"),
        (None, False, "host h0: nobody consumes its queues, gone for 60 s, so that 2 agents cannot work"),
        (None, None, "host h0: nobody consumes its queues, so that 2 agents cannot work"),
        (1, False, None),
        (None, True, None),
    ],
)
async def test_a_host_is_looked_for_at_the_broker_and_else_in_the_log(
    monkeypatch: pytest.MonkeyPatch, consumers: int | None, is_here: bool | None, says: str | None
) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    changed = {"host": "h0", "is_host_present": is_here, "host_changed_at": now - timedelta(minutes=1)}
    rows = [a_row(name) | changed for name in ("a", "b")]
    waiting = {host_queue("h0", urgent=True): 1, host_queue("h0", urgent=False): 2}
    depths = {} if consumers is None else {queue: QueueDepth(count, consumers) for queue, count in waiting.items()}
    found = [one.finding for one in agents._stopped_hosts(rows, depths, now)]
    assert found == ([] if says is None else [says])


@pytest.mark.parametrize(("agents_idle", "findings"), [(3, 3), (500, 1)])
async def test_many_idle_agents_are_one_finding(
    monkeypatch: pytest.MonkeyPatch, agents_idle: int, findings: int
) -> None:
    async def listed(*_: object) -> list[dict[str, Any]]:
        return [a_row(f"agent-{number}") for number in range(agents_idle)]

    monkeypatch.setattr(agents, "listed", listed)
    depths = {agent_queue(f"agent-{number}", False): QueueDepth(2, 0) for number in range(agents_idle)}
    found = await look_at_agents(None, depths)  # type: ignore[arg-type]
    assert len(found) == findings
    if findings == 1:
        assert found[0].finding == (
            "nobody consumes the queues of 500 agents: agent-0, agent-1, agent-2 and 497 more; 1,000 packets wait"
        )


async def test_what_the_broker_could_not_deliver_is_wrong(bench: LogBench) -> None:
    """And a retracted packet is no dead letter any more."""
    sent = [packet_entry() for _ in range(3)]
    reasons = (b'{"error": "no_route"}', b'{"error": "handler_error"}', b'{"error": "overflow"}')
    hops = [
        hop(one, ["dead_lettered"], "ROUTED", "DEAD_LETTERED", "receiver-1", 1, reason)
        for one, reason in zip(sent, reasons, strict=True)
    ]
    retracted = hop(sent[2], ["retraction_packet_received"], "DEAD_LETTERED", "RETRACTED")
    await bench.gate.open()
    await bench.gate.log([*sent, *hops, retracted], [session_row()])
    await bench.write()
    counted, undeliverable = await look_at_dead_letters(bench.pool)
    assert counted.status is Status.WARNING and counted.finding.startswith("2 deliveries ended as dead letters (1 ")
    assert undeliverable.status is Status.WRONG and undeliverable.finding.startswith("1 delivery found no inbox")


async def test_entries_that_could_not_be_stored_are_wrong(bench: LogBench) -> None:
    assert [one.status for one in await look_at_unstored(bench.pool)] == [Status.OK]
    await bench.gate.open()
    await bench.gate.log([ConflictEntry(None, None, "unstorable", None, "why", b"x", None, None, None)])
    await bench.write()
    (found,) = await look_at_unstored(bench.pool)
    assert found.status is Status.WRONG and found.finding.startswith("1 entry could not be stored as what they are")


async def test_how_far_search_is_behind_is_said(bench: LogBench) -> None:
    await bench.gate.open()
    await bench.gate.log([packet_entry()])
    await bench.write()
    (found,) = await look_at_projections(bench.pool)
    assert (found.status, found.finding) == (Status.OK, "0 entries behind the log")
    await bench.pool.execute("UPDATE apc_log.shards SET next_seq = next_seq + 10001")
    (found,) = await look_at_projections(bench.pool)
    assert found.status is Status.WARNING and "10,001 entries behind" in found.finding


async def test_dead_letters_are_counted_among_busy_hops(bench: LogBench, pool: asyncpg.Pool) -> None:
    """Seven in a quarter of an hour are seven, however many hops came after them."""
    sent = packet_entry()
    dead = [
        hop(sent, ["dead_lettered"], "ROUTED", "DEAD_LETTERED", f"receiver-{number}", 1, orjson.dumps({"error": "x"}))
        for number in range(7)
    ]
    busy = [hop(sent, ["delivery_ack"], "ROUTED", "DELIVERED", f"busy-{number}", 1) for number in range(1_100)]
    await bench.gate.open()
    await bench.gate.log([sent, *dead, *busy], [session_row()])
    await bench.write()
    (work,) = await recent_work(pool)
    assert work.dead == 7


def test_an_agent_is_silent_after_three_heartbeats() -> None:
    seen = datetime.now(UTC) - timedelta(seconds=100)
    inbox = {agent_queue("a", urgent): QueueDepth(0, 1) for urgent in (True, False)}
    idle = agents._idle(a_row("a", seen), inbox, datetime.now(UTC))
    assert idle is not None and agents._finding_of(idle).finding.startswith("a: last heard of 100 s ago")
