"""The topology as data."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_bus.errors import TopologyInvalid
from apc_bus.topology import (
    DEAD,
    DEAD_QUEUE,
    HOST_MAX_MESSAGES,
    INTER_AGENT,
    RECEIPTS,
    RETRY,
    RETRY_DELAYS_MS,
    SUBSTRATE_STREAM,
    AgentQueues,
    HostQueues,
    QueueKind,
    agent_of_queue,
    agent_queue,
    build_topology,
    decode_word,
    encode_word,
    gate_queue,
    host_key,
    host_queue,
    host_queue_of_key,
    log_queue,
    recipient_of,
    retry_delay_ms,
    retry_key,
    routing_key,
)
from apc_contracts.vocabulary import CONTROL_TYPES, HOST_PATTERN, PacketType

IDS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,63}", fullmatch=True)
HOSTS = st.from_regex(HOST_PATTERN.removesuffix("$") + r"\Z")


@given(IDS, IDS)
def test_words_are_one_word_and_injective(first: str, second: str) -> None:
    word = encode_word(first)
    assert re.fullmatch(r"[^.*#A-Z]+", word)
    assert (word == encode_word(second)) == (first == second)


@pytest.mark.parametrize(
    ("identifier", "word"),
    [("alpha-1", "alpha-1"), ("Beta.2", "%42eta%2e2"), ("a*#%", "a%2a%23%25"), ("x:y_z", "x:y_z"), ("7", "7")],
)
def test_words(identifier: str, word: str) -> None:
    assert encode_word(identifier) == word


@given(IDS, st.booleans())
def test_a_queue_tells_its_agent(agent_id: str, urgent: bool) -> None:
    assert agent_of_queue(agent_queue(agent_id, urgent)) == agent_id


@given(IDS)
def test_a_word_tells_its_id(identifier: str) -> None:
    assert decode_word(encode_word(identifier)) == identifier


@pytest.mark.parametrize("word", ["", "A", "a%61", "%2E", "%2", "a.b", "%%25", "a*"])
def test_what_no_id_is_encoded_to_names_nobody(word: str) -> None:
    assert decode_word(word) is None


@given(HOSTS, IDS, st.booleans())
def test_the_key_to_a_host_tells_the_recipient_and_the_queue(host: str, agent_id: str, urgent: bool) -> None:
    key = host_key(host, agent_id, urgent)
    assert recipient_of(host_queue(host, urgent), key) == agent_id
    assert recipient_of(host_queue(host, not urgent), key) is None
    assert host_queue_of_key(key) == host_queue(host, urgent)
    assert len(key.encode()) <= 255


@given(IDS, IDS, st.booleans())
def test_the_queue_of_an_agent_tells_the_recipient_whatever_the_key(agent_id: str, key: str, urgent: bool) -> None:
    assert recipient_of(agent_queue(agent_id, urgent), key) == agent_id


@given(st.sampled_from(list(PacketType)), IDS, IDS, st.booleans())
def test_a_key_to_an_own_queue_leads_to_no_host(kind: PacketType, swarm: str, agent_id: str, urgent: bool) -> None:
    assert host_queue_of_key(routing_key(kind, swarm, agent_id, urgent)) is None


@pytest.mark.parametrize("key", ["", "host.h", "host.h.a.b", "host.g.a", "idea.h.a", "host.h.A", "host.h.a.urgent"])
def test_a_key_that_is_none_of_the_host_names_nobody(key: str) -> None:
    assert recipient_of(host_queue("h", urgent=False), key) is None


def test_agents_of_a_host_share_two_queues_and_nothing_is_declared_for_one_of_them() -> None:
    hosted = [AgentQueues(name, "s", frozenset({PacketType.IDEA}), host="h0") for name in ("a", "B.c")]
    alone, shared = build_topology(1), build_topology(1, hosted)
    assert shared.hosts == (HostQueues("h0"),) and shared.exchanges == alone.exchanges
    inboxes = {queue.name: queue for queue in shared.queues if queue not in alone.queues}
    assert set(inboxes) == {"apc.host.h0.urgent", "apc.host.h0.normal"}
    assert {name for agent in hosted for name in agent.names} == set(inboxes)
    for queue in inboxes.values():
        assert queue.arguments["x-single-active-consumer"] is True
        assert queue.arguments["x-max-length"] == HOST_MAX_MESSAGES == 200_000
    bound = {binding.key: binding.queue for binding in shared.bindings if binding not in alone.bindings}
    assert bound == {"host.h0.*.urgent": "apc.host.h0.urgent", "host.h0.*": "apc.host.h0.normal"}


def test_other_queues_have_no_agent() -> None:
    assert agent_of_queue(gate_queue(0)) is None
    assert agent_of_queue(DEAD_QUEUE) is None


def test_urgent_keys_have_a_fourth_word_and_control_types_are_urgent() -> None:
    assert routing_key(PacketType.IDEA, "Red", "a.b", urgent=False) == "idea.%52ed.a%2eb"
    assert routing_key(PacketType.TASK_IR, "red", "a", urgent=True) == "task_ir.red.a.urgent"
    assert routing_key(PacketType.NACK, "red", "a", urgent=False) == "nack.red.a.urgent"


def test_an_agent_gets_what_it_handles_and_every_control_type() -> None:
    topology = build_topology(1, [AgentQueues("a", "s", frozenset({PacketType.IDEA}))])
    keys = {b.key: b.queue for b in topology.bindings if b.exchange == INTER_AGENT}
    assert keys == {
        "idea.s.a": agent_queue("a", urgent=False),
        "idea.s.a.urgent": agent_queue("a", urgent=True),
    } | {f"{kind.value.lower()}.s.a.urgent": agent_queue("a", urgent=True) for kind in CONTROL_TYPES}


def test_nothing_may_be_lost_by_a_queue() -> None:
    for queue in build_topology(2, [AgentQueues("a", "s"), AgentQueues("b", "s", host="h")], bound=50).queues:
        arguments = queue.arguments
        if queue.kind is QueueKind.STREAM:
            assert arguments["x-max-length-bytes"] == 1 << 30
            continue
        assert arguments["x-queue-type"] == "quorum"
        assert arguments["x-overflow"] == "reject-publish"
        assert int(arguments["x-delivery-limit"]) >= 20
        if queue.name != DEAD_QUEUE:
            is_delay = queue.name.startswith("apc.retry.")
            assert arguments["x-dead-letter-exchange"] == (RECEIPTS if is_delay else DEAD)
            assert ("x-message-ttl" in arguments) == is_delay
            assert arguments["x-dead-letter-strategy"] == "at-least-once"
        if queue.name.startswith("apc.agent."):
            assert arguments["x-max-length"] == 100
        assert ("x-single-active-consumer" in arguments) == queue.name.startswith(
            ("apc.gate.", "apc.log.", "apc.host.")
        )


@pytest.mark.parametrize("shards", [1, 4, 256])
def test_a_slot_is_bound_to_one_shard_and_the_number_of_a_shard_is_a_slot_of_it(shards: int) -> None:
    topology = build_topology(shards)
    assert len({(b.exchange, b.key) for b in topology.bindings}) == len(topology.bindings), "no key has two queues"
    bound = {(b.exchange, b.key): b.queue for b in topology.bindings}
    for slot in range(256):
        assert bound[("apc.ingress", str(slot))] == gate_queue(slot % shards)
        assert bound[("apc.receipts", str(slot))] == gate_queue(slot % shards)
    for shard in range(shards):
        assert bound[("apc.log", str(shard))] == log_queue(shard)
    assert ("apc.ingress", "256") not in bound
    assert bound[("apc.substrate", "")] == SUBSTRATE_STREAM
    assert bound[("apc.dead", "")] == DEAD_QUEUE


def test_a_delay_queue_leads_back_to_the_gate_of_the_shard() -> None:
    topology = build_topology(2)
    bound = {(b.exchange, b.key): b.queue for b in topology.bindings}
    lives = {queue.name: queue.ttl_ms for queue in topology.queues}
    for delay in RETRY_DELAYS_MS:
        for shard in (0, 1):
            assert lives[bound[(RETRY, retry_key(delay, shard))]] == delay
            assert bound[(RECEIPTS, retry_key(delay, shard))] == gate_queue(shard)


@given(st.integers(min_value=1, max_value=90_000_000))
def test_rounds_of_delays_end_a_little_late_and_never_early(left_ms: int) -> None:
    waited, rounds = 0, 0
    while waited < left_ms:
        waited += retry_delay_ms(left_ms - waited)
        rounds += 1
    assert waited <= left_ms * 5 / 4 + RETRY_DELAYS_MS[0]
    assert rounds <= left_ms // RETRY_DELAYS_MS[-1] + 10


def test_rows_show_every_exchange() -> None:
    assert {row[0] for row in build_topology().rows()} == {
        "apc.ingress",
        "apc.receipts",
        "apc.inter_agent",
        "apc.substrate",
        "apc.log",
        "apc.retry",
        "apc.dead",
    }


def test_the_slots_of_a_shard_are_one_row() -> None:
    rows = [(row[2], row[3]) for row in build_topology(2).rows() if row[0] == "apc.ingress"]
    assert rows == [("0, 2, … 254", "apc.gate.0"), ("1, 3, … 255", "apc.gate.1")]
    assert ("apc.ingress", "direct", "1, 129", "apc.gate.1") in build_topology(128).rows()
    assert ("apc.ingress", "direct", "255", "apc.gate.255") in build_topology(256).rows()


def test_what_cannot_be_built_is_refused() -> None:
    for shards in (-1, 0, 3, 12, 512):
        with pytest.raises(TopologyInvalid, match=rf"{shards} shards: APC_SHARDS must be a power of two from 1 to 256"):
            build_topology(shards)
    with pytest.raises(TopologyInvalid, match="twice"):
        build_topology(1, [AgentQueues("a", "s"), AgentQueues("a", "t")])
    with pytest.raises(TopologyInvalid, match="255"):
        build_topology(1, [AgentQueues("A" * 64, "B" * 64)])
    for host in ("", "H", "a.b", "*", "#", "a\n", "-a", "a" * 33):
        with pytest.raises(TopologyInvalid, match="is no id"):
            build_topology(1, [AgentQueues("a", "s", host=host)])
