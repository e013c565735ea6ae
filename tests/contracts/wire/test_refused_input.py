"""What is kept of refused input: whole or the beginning, and no more than the quota of its sender."""

from datetime import UTC, datetime, timedelta
from hashlib import sha256

from apc_contracts.contract.file import RefusedInput
from apc_contracts.wire.refused_input import Flood, RefusedQuotas, kept_of

BEGIN = datetime(2026, 2, 19, tzinfo=UTC)
RULES = RefusedInput(
    whole_bytes=100, head_bytes=10, messages_per_second=1, messages_burst=3, bytes_per_second=64, bytes_burst=640
)


def test_a_body_up_to_the_bound_is_kept_whole() -> None:
    kept = kept_of(b"x" * 100, RULES)
    assert (kept.raw, kept.second_hash, kept.note) == (b"x" * 100, None, "")


def test_of_a_longer_one_hash_length_and_beginning_are_kept() -> None:
    body = b"0123456789" + b"x" * 91
    kept = kept_of(body, RULES)
    assert (kept.raw, kept.second_hash) == (b"0123456789", sha256(body).digest())
    assert "[101 bytes, the first 10 of them kept" in kept.note


def test_messages_have_a_quota_for_each_user() -> None:
    quotas = RefusedQuotas(RULES)
    assert [quotas.draw("a", 1, BEGIN) for _ in range(4)] == [True, True, True, False]
    assert quotas.draw("b", 1, BEGIN)
    assert quotas.draw("a", 1, BEGIN + timedelta(seconds=1))


def test_bytes_have_their_own_quota() -> None:
    quotas = RefusedQuotas(RULES)
    assert quotas.draw("a", 600, BEGIN)
    assert not quotas.draw("a", 600, BEGIN)
    assert quotas.draw("a", 600, BEGIN + timedelta(seconds=10))


def test_users_who_were_silent_are_forgotten() -> None:
    quotas = RefusedQuotas(RULES)
    for number in range(5000):
        quotas.draw(f"user-{number}", 1, BEGIN + timedelta(seconds=10 * number))
    assert len(quotas) <= 1024


def test_a_flood_is_counted_under_one_hash() -> None:
    flood, same, other = Flood(), Flood(), Flood()
    for body in (b"one", b"two"):
        flood.add(body)
        same.add(body)
    other.add(b"two")
    other.add(b"one")
    assert (flood.inputs, flood.size) == (2, 6)
    assert flood == same and flood.digest != other.digest
