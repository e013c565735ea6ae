"""The token bucket of a sender, against one that counts tokens; who is exempt; what a contract file may say."""

import json
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_contracts import PacketType, VerdictKind
from apc_contracts.contract.contract import PACKAGED_CONTRACT, Contract, contract_from_bytes, load_contract
from apc_contracts.contract.file import Quota, QuotaRules
from apc_contracts.errors import ContractInvalid
from apc_contracts.judging.quotas import Quotas
from apc_contracts.vocabulary import CONTROL_TYPES, ORCHESTRATOR

from ..scene import Scene

BEGIN = datetime(2026, 2, 19, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
RATES = st.sampled_from([Fraction(1, 2), Fraction(1), Fraction(5), Fraction(100), Fraction(1000)])


class CountedBucket:
    """The same bucket as tokens, exactly."""

    def __init__(self, rate: Fraction, burst: int) -> None:
        self.rate, self.burst, self.tokens, self.at = rate, burst, Fraction(burst), BEGIN

    def refill(self, now: datetime) -> None:
        passed = Fraction((now - self.at) // timedelta(microseconds=1), 1_000_000)
        self.tokens, self.at = min(Fraction(self.burst), self.tokens + passed * self.rate), now


def rules(rate: float, burst: int, **others: dict[str, Quota]) -> QuotaRules:
    return QuotaRules(
        packets_per_second=rate, burst=burst, roles=others.get("roles", {}), agents=others.get("agents", {})
    )


@given(RATES, st.integers(1, 5), st.lists(st.tuples(st.integers(0, 3_000), st.booleans()), max_size=40))
def test_it_is_a_token_bucket(rate: Fraction, burst: int, steps: list[tuple[int, bool]]) -> None:
    quotas, counted, now = Quotas(rules(float(rate), burst)), CountedBucket(rate, burst), BEGIN
    for pause_ms, may_draw in steps:
        now += pause_ms * MILLISECOND
        counted.refill(now)
        wait_ms = quotas.wait_ms("a", "worker", now)
        missing = max(Fraction(0), (1 - counted.tokens) / rate * 1000)
        assert wait_ms == -(-missing // 1)
        if may_draw and not wait_ms:
            quotas.draw("a", "worker", now)
            counted.tokens -= 1


@given(RATES, st.integers(1, 5), st.integers(1, 50))
def test_who_waits_as_told_gets_through_and_not_before(rate: Fraction, burst: int, packets: int) -> None:
    quotas, now = Quotas(rules(float(rate), burst)), BEGIN
    for _ in range(packets):
        while wait_ms := quotas.wait_ms("a", "worker", now):
            assert quotas.wait_ms("a", "worker", now + (wait_ms - 1) * MILLISECOND) > 0
            now += wait_ms * MILLISECOND
        quotas.draw("a", "worker", now)
    expected = max(0, packets - burst) / rate
    assert float(expected) <= (now - BEGIN).total_seconds() <= float(expected) + packets / 1000


def test_each_sender_has_its_own_by_agent_then_role() -> None:
    role, agent = Quota(packets_per_second=1, burst=2), Quota(packets_per_second=1, burst=3)
    quotas = Quotas(rules(1, 1, roles={"crowd": role}, agents={"loud": agent}))

    def admitted(agent_id: str, of_role: str) -> int:
        count = 0
        while not quotas.wait_ms(agent_id, of_role, BEGIN):
            quotas.draw(agent_id, of_role, BEGIN)
            count += 1
        return count

    assert [admitted("loud", "crowd"), admitted("one", "crowd"), admitted("two", "other")] == [3, 2, 1]


def test_without_rules_nobody_waits() -> None:
    quotas = Quotas(None)
    for _ in range(1000):
        quotas.draw("a", "worker", BEGIN)
    assert quotas.wait_ms("a", "worker", BEGIN) == 0


@pytest.mark.parametrize("packet_type", sorted(CONTROL_TYPES))
def test_control_types_are_exempt(packet_type: PacketType, contract: Contract) -> None:
    for wait_ms in (0, 40):
        refusal = Scene(packet_type, facts={"quota_wait_ms": wait_ms}).judge(contract).refusal
        assert refusal is None or refusal.code != "QUOTA_EXCEEDED"


def test_the_orchestrator_is_exempt(contract: Contract) -> None:
    scene = Scene(PacketType.IDEA, {"sender__agent_id": ORCHESTRATOR}, facts={"quota_wait_ms": 40})
    refusal = scene.judge(contract).refusal
    assert refusal is None or refusal.code != "QUOTA_EXCEEDED"


def test_the_refusal_says_what_holds_and_when_to_come_again(contract: Contract) -> None:
    refusal = Scene(PacketType.IDEA, facts={"quota_wait_ms": 40}).judge(contract).refusal
    assert refusal is not None and refusal.retry_after_ms == 40
    quota = contract.limits.quota
    assert quota is not None
    assert refusal.message == (
        f"builder-1 may send {quota.packets_per_second:g} packets a second, {quota.burst} at once: "
        "send a new packet in 40 ms"
    )


def test_a_contract_without_quotas_refuses_nobody() -> None:
    file = json.loads((files("apc_contracts") / PACKAGED_CONTRACT).read_text())
    del file["limits"]["quota"]
    without = contract_from_bytes(json.dumps(file).encode())
    scene = Scene(PacketType.IDEA, facts={"quota_wait_ms": 40})

    assert scene.judge(load_contract()).kind is VerdictKind.REFUSED
    assert scene.judge(without).kind is VerdictKind.ACCEPTED


@pytest.mark.parametrize(
    ("quota", "place"),
    [
        ({"packets_per_second": 0}, "limits.quota.packets_per_second"),
        ({"burst": 0}, "limits.quota.burst"),
        ({"agents": {"a": {"burst": 1}}}, "limits.quota.agents.a.packets_per_second"),
    ],
)
def test_a_quota_that_cannot_be_used_is_refused_with_its_place(quota: dict[str, Any], place: str) -> None:
    file = json.loads((files("apc_contracts") / PACKAGED_CONTRACT).read_text())
    file["limits"]["quota"] |= quota
    with pytest.raises(ContractInvalid, match=place):
        contract_from_bytes(json.dumps(file).encode())
