"""The causal tree: causes first, parents where no cause is named."""

from msgspec.structs import replace
from tests.support.log import LogBench, packet_entry

from apc_log.queries import get_packet_tree


async def test_a_packet_stands_under_its_cause_or_else_its_parent(bench: LogBench) -> None:
    root = packet_entry()
    answer = packet_entry(parent=root)
    # Its parent is the root, but the answer caused it.
    follow_up = replace(packet_entry(parent=root), cause_packet_id=answer.packet_id)
    sync = replace(packet_entry(parent=root), cause_packet_id=None)
    stranger = replace(packet_entry(parent=root), session_id="session-2")
    await bench.gate.open()
    await bench.gate.log([root, answer, follow_up, sync, stranger, packet_entry()])
    await bench.write()
    tree = await get_packet_tree(bench.pool, root.packet_id)
    assert tree is not None
    assert [(row.packet_id, row.above, row.edge) for row in tree.rows] == [
        (root.packet_id, None, None),
        (answer.packet_id, root.packet_id, "cause"),
        (sync.packet_id, root.packet_id, "parent"),
        (follow_up.packet_id, answer.packet_id, "cause"),
    ]
    assert not tree.is_cut
    cut = await get_packet_tree(bench.pool, root.packet_id, limit=3)
    assert cut is not None
    assert cut.is_cut
    assert cut.rows == tree.rows[:3]
    whole = await get_packet_tree(bench.pool, root.packet_id, limit=4)
    assert whole == tree


async def test_a_tree_of_nothing(bench: LogBench) -> None:
    assert await get_packet_tree(bench.pool, packet_entry().packet_id) is None
