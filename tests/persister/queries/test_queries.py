"""Reading the log back: filters, pages, timelines, the order of a replay."""

from collections import Counter
from uuid import uuid4

import pytest
from tests.support.log import LogBench, coordination, hop, lifecycle, packet_entry, session_row

from apc_log.batch import PacketEntry
from apc_log.queries import (
    CoordinationRow,
    LogRow,
    PacketRow,
    TransitionRow,
    get_packet_timeline,
    list_agent_packets,
    list_packet_events,
    replay,
    replay_page,
    trace,
)


async def fill(bench: LogBench) -> dict[str, PacketEntry]:
    """Two runs in three sessions: a root, its child, a refused packet, and a packet of another run."""
    root = packet_entry(packet_type="TASK_IR", text="root")
    child = packet_entry(parent=root, run_phase="DISCOVERY", task_id="task-2", recipients=("a", "b"))
    refused = packet_entry(parent=root, refusal_code="QUOTA_EXCEEDED", session_id="session-2")
    foreign = packet_entry(run_id="run-2", session_id="session-9")
    started = coordination(root, 1, "research_briefs_dispatched", "SESSION_OPEN", "DIFFERENTIATED_RESEARCH")
    await bench.gate.open()
    routed, *rest = lifecycle(root)
    await bench.gate.log([root, routed, foreign, *lifecycle(foreign), started], [session_row(step=1)])
    await bench.gate.log([child, *lifecycle(child)[:3], refused, *rest], [session_row("session-2")])
    return {"root": root, "child": child, "refused": refused, "foreign": foreign}


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, ["root", "foreign", "child", "refused"]),
        ({"run_id": "run-1"}, ["root", "child", "refused"]),
        ({"session_id": "session-1"}, ["root", "child"]),
        ({"task_id": "task-2"}, ["child"]),
        ({"packet_type": "TASK_IR"}, ["root"]),
        ({"run_phase": "DISCOVERY"}, ["child"]),
        ({"run_id": "run-1", "packet_type": "IDEA", "run_phase": "RESEARCH"}, ["refused"]),
        ({"run_id": "no such run"}, []),
        ({"run_id": "'; DROP TABLE apc_log.shards; --"}, []),
    ],
)
async def test_filters(bench: LogBench, filters: dict[str, str], names: list[str]) -> None:
    packets = await fill(bench)
    await bench.write()
    found = await list_agent_packets(bench.pool, **filters)  # type: ignore[arg-type]  # filters by name
    assert [row.packet_id for row in found] == [packets[name].packet_id for name in names]


async def test_by_packet_and_by_root(bench: LogBench) -> None:
    packets = await fill(bench)
    await bench.write()
    child = packets["child"]
    by_id = await list_agent_packets(bench.pool, packet_id=child.packet_id)
    assert [row.packet_id for row in by_id] == [child.packet_id]
    by_root = await list_agent_packets(bench.pool, trace_id=packets["root"].packet_id)
    assert [row.packet_id for row in by_root] == [packets[name].packet_id for name in ("root", "child", "refused")]


async def test_a_row_says_what_was_logged(bench: LogBench) -> None:
    packets = await fill(bench)
    await bench.write()
    (row,) = await list_agent_packets(bench.pool, packet_id=packets["refused"].packet_id)
    entry = packets["refused"]
    for name in PacketEntry.__struct_fields__:
        if name not in ("recipients", "facts", "refusal", "payload_hash"):
            assert getattr(row, name) == getattr(entry, name), name
    assert row.recipients == ("receiver-1",)
    assert row.facts == {"outstanding": 3}
    assert row.refusal == {"code": "QUOTA_EXCEEDED", "rule": "rule", "path": "$", "message": "no"}
    assert row.refusal_code == "QUOTA_EXCEEDED"


async def test_pages_follow_one_another(bench: LogBench) -> None:
    await bench.gate.open()
    entries = [packet_entry() for _ in range(7)]
    await bench.gate.log(entries)
    await bench.write()
    seen: list[PacketRow] = []
    after = None
    for size in (3, 3, 1):
        page = await trace(bench.pool, run_id="run-1", limit=3, after=after)
        assert len(page.packets) == size
        seen += [one.packet for one in page.packets]
        after = page.after
    assert after is None
    assert [row.packet_id for row in seen] == [entry.packet_id for entry in entries]


async def test_a_trace_holds_states_and_transitions(bench: LogBench) -> None:
    packets = await fill(bench)
    await bench.write()
    page = await trace(bench.pool, run_id="run-1")
    root, child, refused = page.packets
    assert [one.state for one in page.packets] == ["ARCHIVED", "ROUTED", "DRAFT"]
    assert [step.event for step in root.transitions] == [
        "emit",
        "schema_pass",
        "policy_pass",
        "route_selected",
        "delivery_ack",
        "consumer_apply",
        "verification_pass",
        "non_promotable_complete",
    ]
    for before, step in zip(root.transitions, root.transitions[1:], strict=False):
        assert step.from_state == before.to_state
    assert root.transitions[0].from_state == "DRAFT"
    assert root.transitions[-1].to_state == "ARCHIVED"
    said = {step.event: step.metadata for step in root.transitions}
    assert said["consumer_apply"] == {"note": "scripted"} and said["non_promotable_complete"] is None
    assert {step.recipient for step in child.transitions} == {"", "a"}, "b has not answered"
    assert refused.transitions == ()
    short = await trace(bench.pool, run_id="run-1", with_events=False)
    assert [one.state for one in short.packets] == ["ARCHIVED", "ROUTED", "DRAFT"]
    assert all(one.transitions == () for one in short.packets)
    events = await list_packet_events(bench.pool, packets["root"].packet_id)
    assert tuple(events) == root.transitions


@pytest.mark.parametrize(
    ("hops", "state"),
    [
        ([("a", "ROUTED", "DELIVERED"), ("b", "ROUTED", "EXPIRED")], "DELIVERED"),
        ([("a", "ROUTED", "DEAD_LETTERED"), ("b", "APPLIED", "ARCHIVED")], "DEAD_LETTERED"),
        ([("a", "ROUTED", "EXPIRED"), ("b", "ROUTED", "EXPIRED")], "EXPIRED"),
        ([("a", "VERIFIED", "PROMOTED"), ("b", "APPLIED", "VERIFIED")], "VERIFIED"),
        ([("a", "ROUTED", "APPLIED"), ("b", "ROUTED", "APPLIED"), ("", "ROUTED", "RETRACTED")], "RETRACTED"),
        ([("a", "APPLIED", "ARCHIVED"), ("b", "APPLIED", "ARCHIVED"), ("a", "ARCHIVED", "")], "ARCHIVED"),
    ],
)
async def test_the_overall_state(bench: LogBench, hops: list[tuple[str, str, str]], state: str) -> None:
    """The least advanced recipient's; rejected and expired ones do not hold the rest back."""
    packet = packet_entry(recipients=("a", "b"))
    moves = [hop(packet, ["consumer_apply"], before, after, recipient, 1) for recipient, before, after in hops]
    await bench.gate.open()
    await bench.gate.log([packet, lifecycle(packet)[0], *moves])
    await bench.write()
    timeline = await get_packet_timeline(bench.pool, packet.packet_id)
    assert timeline is not None
    assert timeline.state == state
    assert await bench.pool.fetchval("SELECT state FROM apc_log.packet_state") == state


async def test_a_timeline_of_nothing(bench: LogBench) -> None:
    assert await get_packet_timeline(bench.pool, uuid4()) is None


async def test_one_id_in_two_sessions(bench: LogBench) -> None:
    first = packet_entry()
    second = packet_entry(first.packet_id, session_id="session-2")
    await bench.gate.open()
    await bench.gate.log([first, *lifecycle(first), second])
    await bench.write()
    here = await get_packet_timeline(bench.pool, first.packet_id, session_id="session-2")
    assert here is not None
    assert (here.packet.session_id, here.state, here.transitions) == ("session-2", "DRAFT", ())


async def test_a_replay_is_the_run_in_order(bench: LogBench) -> None:
    packets = await fill(bench)
    await bench.write()
    rows = [row async for row in replay(bench.pool, "run-1")]
    assert [(row.shard, row.seq) for row in rows] == sorted((row.shard, row.seq) for row in rows)
    assert Counter(type(row) for row in rows) == {PacketRow: 3, TransitionRow: 16, CoordinationRow: 1}
    assert packets["foreign"].packet_id not in {getattr(row, "packet_id", None) for row in rows}
    kinds = [type(row).__name__ for row in rows]
    assert kinds[:6] == ["PacketRow", *["TransitionRow"] * 4, "CoordinationRow"]


async def test_a_replay_of_one_task(bench: LogBench) -> None:
    packets = await fill(bench)
    await bench.write()
    rows = [row async for row in replay(bench.pool, "run-1", "task-2")]
    of_packets = {row.packet_id for row in rows if not isinstance(row, CoordinationRow)}
    assert of_packets == {packets["child"].packet_id}
    assert any(isinstance(row, CoordinationRow) for row in rows)


async def test_a_replay_of_nothing(bench: LogBench) -> None:
    assert [row async for row in replay(bench.pool, "no such run")] == []


async def test_a_long_replay_keeps_the_order_over_its_pages(bench: LogBench) -> None:
    """Hops that come long after their packet stand where they belong."""
    await bench.gate.open()
    entries = [packet_entry() for _ in range(1100)]
    for start in range(0, 1100, 100):
        await bench.gate.log([entry for packet in entries[start : start + 100] for entry in (packet,)])
    late = [one for packet in entries for one in lifecycle(packet)]
    await bench.gate.log(late[:1650])
    more = packet_entry()
    await bench.gate.log([more, *late[1650:]], [session_row()])
    await bench.gate.log([coordination(more, 1, "all_swarms_ready", "A", "B")])
    await bench.write()
    rows = [row async for row in replay(bench.pool, "run-1")]
    order = [(row.shard, row.seq, getattr(row, "ordinal", 0)) for row in rows]
    assert order == sorted(order)
    assert len(set(order)) == len(order) == 1101 + 8 * 1100 + 1
    assert isinstance(rows[-1], CoordinationRow)


async def test_pages_of_a_replay_are_the_replay(bench: LogBench) -> None:
    """By run and by task, in pages of one entry and of a few."""
    await fill(bench)
    await bench.write()
    for task_id in (None, "task-2"):
        whole = [row async for row in replay(bench.pool, "run-1", task_id)]
        for limit in (1, 3):
            paged: list[LogRow] = []
            page = await replay_page(bench.pool, "run-1", task_id, limit=limit)
            paged += page.rows
            while page.after is not None:
                page = await replay_page(bench.pool, "run-1", task_id, limit=limit, after=page.after)
                assert len({row.position for row in page.rows}) <= limit
                paged += page.rows
            assert paged == whole


async def test_a_replay_ends_where_the_log_ended_when_it_began(bench: LogBench) -> None:
    await bench.gate.open()
    packet = packet_entry()
    await bench.gate.log([packet])
    await bench.write()
    rows = replay(bench.pool, "run-1")
    assert isinstance(await anext(rows), PacketRow)
    await bench.gate.log(lifecycle(packet))
    await bench.write()
    assert [row async for row in rows] == []
