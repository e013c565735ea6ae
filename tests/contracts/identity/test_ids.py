"""Ids that a second run makes again."""

import time
from uuid import RFC_4122, UUID, uuid5

from hypothesis import given
from hypothesis import strategies as st

from apc_contracts import new_packet_id, reply_id, shard_of, slot_of, timer_id
from apc_contracts.identity.ids import keyed_id

CAUSE = UUID("0190a5f2-1111-7222-8333-444455556666")


def test_a_new_id_is_version_7_and_tells_its_millisecond() -> None:
    before = time.time_ns() // 1_000_000
    ids = [new_packet_id() for _ in range(100)]
    after = time.time_ns() // 1_000_000
    assert len(set(ids)) == 100
    for packet_id in ids:
        assert (packet_id.version, packet_id.variant) == (7, RFC_4122)
        assert before <= packet_id.int >> 80 <= after


def test_a_reply_is_made_again_from_cause_agent_and_ordinal() -> None:
    assert reply_id(CAUSE, "builder-1", 2) == uuid5(CAUSE, "builder-1/2")
    assert reply_id(CAUSE, "orchestrator", "nack") == uuid5(CAUSE, "orchestrator/nack")
    assert reply_id(CAUSE, "builder-1", 2).version == 5
    assert len({reply_id(CAUSE, agent, n) for agent in ("a", "b") for n in range(5)}) == 10


def test_what_a_key_names_is_version_8_and_follows_from_all_its_parts() -> None:
    first = keyed_id("review", "pr-1", "start")
    assert first == keyed_id("review", "pr-1", "start")
    assert (first.version, first.variant) == (8, RFC_4122)
    assert len({first, keyed_id("review", "pr-1", "input"), keyed_id("reviewp", "r-1", "start")}) == 3


def test_a_timer_is_made_again_from_session_step_and_kind() -> None:
    url = UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")
    assert timer_id("sess-01", 7, "generation") == uuid5(url, "apc:sess-01/7/generation")


def test_shards_are_those_of_crc_32() -> None:
    # The check value of CRC-32/ISO-HDLC: what a client in any language can compare with.
    assert shard_of("123456789", 2**32) == 0xCBF43926
    assert shard_of("anything", 1) == 0


@given(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,63}", fullmatch=True), st.integers(1, 64))
def test_every_session_has_one_shard(session_id: str, shards: int) -> None:
    assert 0 <= shard_of(session_id, shards) < shards


@given(st.text(min_size=1), st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128, 256]))
def test_the_slot_tells_the_shard_whatever_the_number_of_shards(session_id: str, shards: int) -> None:
    assert slot_of(session_id) % shards == shard_of(session_id, shards)
    assert slot_of("123456789") == 0xCBF43926 % 256
