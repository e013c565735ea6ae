"""What only the in-process adapter has: topic patterns, growth at run time, bounds of its stream."""

import pytest

from apc_bus.errors import QueueMissing
from apc_bus.in_memory import InMemoryBroker, InMemoryStream, fingerprint_of, topic_matches
from apc_bus.port import Message, Publication
from apc_bus.topology import INTER_AGENT, AgentQueues, Queue, QueueKind, agent_queue, build_topology
from apc_contracts.vocabulary import PacketType


@pytest.mark.parametrize(
    ("binding", "matching", "other"),
    [
        ("#", ["", "a", "a.b.c"], []),
        ("a.#", ["a", "a.b", "a.b.c"], ["ab", "b.a", ""]),
        ("#.c", ["c", "b.c", "a.b.c"], ["ac", "c.d"]),
        ("a.*", ["a.b"], ["a", "a.b.c", "b.a"]),
        ("*.b.*", ["a.b.c"], ["a.b", "b.c", "a.c.b"]),
        ("a.#.z", ["a.z", "a.b.z", "a.b.c.z"], ["a", "z", "az"]),
        ("a%2ab.*", ["a%2ab.x"], ["a.b.x"]),
    ],
)
def test_topic_matching(binding: str, matching: list[str], other: list[str]) -> None:
    assert [key for key in matching if not topic_matches(binding, key)] == []
    assert [key for key in other if topic_matches(binding, key)] == []


async def test_agents_may_join_later(memory_broker: InMemoryBroker) -> None:
    bus = memory_broker.connect("orchestrator")
    with pytest.raises(QueueMissing):
        await bus.depth(agent_queue("late", urgent=False))
    late = AgentQueues("late", "red", frozenset({PacketType.IDEA}))
    memory_broker.apply(build_topology(1, [late]))
    memory_broker.apply(build_topology(1, [late]))
    await bus.publish(Publication(INTER_AGENT, "idea.red.late", Message(b"{}", "m")))
    assert (await bus.depth(agent_queue("late", urgent=False))).messages == 1


async def test_two_users_are_told_apart(memory_broker: InMemoryBroker) -> None:
    assert memory_broker.connect("a").user == "a"
    assert memory_broker.connect("b").user == "b"


def test_a_stream_drops_its_oldest() -> None:
    stream = InMemoryStream(Queue("s", QueueKind.STREAM, max_bytes=100))
    for index in range(30):
        stream.append(Message(b"x" * 10, str(index)), "")
    assert len(stream) == 10


async def test_what_a_former_process_may_have_handed_over_comes_as_redelivered() -> None:
    """It is the same message in each process, though the headers tell another epoch."""
    fingerprints = set()
    for epoch in (1, 2):
        broker = InMemoryBroker(build_topology(1, [AgentQueues("a", "red", frozenset({PacketType.IDEA}))]))
        bus = broker.connect("orchestrator")
        message = Message(b"{}", "m", headers={"apc-epoch": epoch})
        await bus.publish(Publication(INTER_AGENT, "idea.red.a", message, is_repeated=True))
        await bus.publish(Publication(INTER_AGENT, "idea.red.a", Message(b"{}", "n")))
        async with bus.subscribe(agent_queue("a", urgent=False)) as inbox:
            repeated, new = await inbox.receive()
        assert (repeated.is_redelivered, new.is_redelivered) == (True, False)
        assert "x-delivery-count" not in repeated.message.headers, "nobody has counted"
        fingerprints.add(fingerprint_of(repeated))
        assert fingerprint_of(new) not in fingerprints
    assert len(fingerprints) == 1
