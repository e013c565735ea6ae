"""Blocks: when they begin, what they cover, when they end; the ledger against a brute-force account."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apc_contracts.contract.contract import load_contract
from apc_contracts.protocol.effectiveness import (
    DecayDecision,
    DecayKind,
    DecayScope,
    EvalTally,
    ProtocolFigures,
    ProtocolTally,
    Subject,
    half_lives,
    is_decayed,
    measure,
    read_decision,
    recovers_at,
)
from apc_contracts.protocol.ledger import JudgedTransfer, ProtocolLedger, ProtocolLineage

RULES = load_contract().effectiveness
HALF_LIFE = timedelta(milliseconds=RULES.half_life_ms)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
TASK = ("run", "task")
NAMES = "abcdefgh"


def judged(name: str, *parents: str, code: str | None = None, task: tuple[str, str] = TASK) -> JudgedTransfer:
    return JudgedTransfer(name, parents, task, code)


def refused(name: str, *parents: str, times: int = 5) -> list[JudgedTransfer]:
    return [judged(name, *parents, code="THROTTLE_SCORE")] * times


def feed(ledger: ProtocolLedger, transfers: Sequence[JudgedTransfer], now: datetime = NOW) -> list[DecayDecision]:
    return [decision for transfer in transfers for decision in ledger.note_transfer(transfer, now)]


def figures(transfers: int, effectiveness: float, drift_risk: float) -> ProtocolFigures:
    return ProtocolFigures(transfers, 0, 0.0, 0.0, drift_risk, effectiveness)


@pytest.mark.parametrize(
    ("transfers", "effectiveness", "drift_risk", "expected"),
    [
        (4, 0.0, 1.0, False),
        (5, 0.349, 0.0, True),
        (5, 0.35, 0.75, False),
        (5, 0.9, 0.751, True),
    ],
)
def test_limits(transfers: int, effectiveness: float, drift_risk: float, expected: bool) -> None:
    assert is_decayed(figures(transfers, effectiveness, drift_risk), RULES) is expected


@given(st.integers(5, 10_000))
def test_more_evidence_blocks_longer_and_one_half_life_at_least(transfers: int) -> None:
    lives = half_lives(transfers, RULES)

    assert lives >= 1
    assert transfers / 2**lives < RULES.minimum_transfers <= max(transfers / 2 ** (lives - 1), RULES.minimum_transfers)
    assert half_lives(transfers + 1, RULES) >= lives
    assert recovers_at(NOW, transfers, RULES) == NOW + lives * HALF_LIFE


def test_fifth_bad_transfer_blocks_until_its_half_life_is_over() -> None:
    ledger = ProtocolLedger(RULES)

    assert feed(ledger, refused("weak", times=4)) == []
    (block,) = feed(ledger, refused("weak", times=1))

    assert (block.kind, block.subject) == (DecayKind.BLOCKED, Subject(DecayScope.PROTOCOL, "weak"))
    assert block.is_justified(RULES)
    assert ledger.decayed(NOW) == {"weak"}
    ends = NOW + HALF_LIFE
    assert ledger.decayed(ends - timedelta(microseconds=1)) == {"weak"}
    assert ledger.decayed(ends) == frozenset()
    (recovery,) = ledger.note_transfer(judged("weak"), ends)
    assert (recovery.kind, recovery.at, recovery.blocked_at) == (DecayKind.RECOVERED, ends, NOW)
    assert recovery.is_justified(RULES)
    assert ledger.tallies()[Subject(DecayScope.PROTOCOL, "weak")].transfers == 1


def test_drift_of_evals_alone_blocks_what_is_always_accepted() -> None:
    ledger = ProtocolLedger(RULES)
    assert feed(ledger, [judged("drifting")] * 5) == []

    (block,) = ledger.note_eval(TASK, 0.9, 0.8, NOW)

    assert block.figures(RULES).effectiveness > RULES.minimum_effectiveness
    assert ledger.decayed(NOW) == {"drifting"}
    assert ledger.note_eval(TASK, 0.9, 0.8, NOW) == []


def test_new_id_does_not_escape_even_without_its_parents() -> None:
    ledger = ProtocolLedger(RULES)
    feed(ledger, refused("weak"))

    ledger.note_transfer(judged("renamed", "weak", code="PROTOCOL_DECAYED"), NOW)

    assert ledger.decayed(NOW) == {"weak", "renamed"}
    assert Subject(DecayScope.PROTOCOL, "renamed") not in ledger.tallies()


def test_cluster_is_blocked_when_no_single_protocol_is() -> None:
    ledger = ProtocolLedger(RULES)
    family = [judged(f"child-{number}", "root", code="THROTTLE_TOP_K") for number in range(5)]

    (block,) = feed(ledger, family)

    assert block.subject == Subject(DecayScope.CLUSTER, "root")
    assert ledger.decayed(NOW) == {"root", *(f"child-{number}" for number in range(5))}


def test_older_protocol_is_not_drawn_in_by_naming_a_blocked_parent() -> None:
    ledger = ProtocolLedger(RULES)
    feed(ledger, [judged("good")])
    feed(ledger, refused("weak"))

    feed(ledger, [judged("good", "weak")])

    assert ledger.decayed(NOW) == {"weak"}


def test_refusals_that_are_not_about_the_protocol_do_not_block_it() -> None:
    ledger = ProtocolLedger(RULES)

    assert feed(ledger, [judged("victim", "weak", code="NOT_AUTHORIZED")] * 20) == []
    assert ledger.tallies() == {}


def test_record_is_read_back() -> None:
    (block,) = feed(ProtocolLedger(RULES), refused("weak"))

    assert read_decision(block.record) == block


LINEAGES = st.lists(st.tuples(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=3)), max_size=20)


@given(LINEAGES)
def test_families_against_brute_force(declared: list[tuple[str, list[str]]]) -> None:
    lineage = ProtocolLineage()
    parents: dict[str, set[str]] = {}
    for name, named in declared:
        lineage.declare(name, named)
        if name not in parents:
            for parent in named:
                if parent != name:
                    parents.setdefault(parent, set())
            parents[name] = set(named) - {name}

    def ancestors(name: str) -> set[str]:
        found = {name}
        while (more := found.union(*(parents.get(one, set()) for one in found))) != found:
            found = more
        return found

    for name in NAMES:
        assert lineage.family(name) == {name, *(other for other in parents if name in ancestors(other))}
        assert lineage.roots(name) == {one for one in ancestors(name) if not parents.get(one)}


EVENTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("transfer"),
            st.sampled_from(NAMES),
            st.lists(st.sampled_from(NAMES), max_size=2),
            st.sampled_from("tu"),
            st.sampled_from([None, "THROTTLE_SCORE", "NOT_AUTHORIZED"]),
        ),
        st.tuples(st.just("eval"), st.sampled_from("tuv"), st.floats(0, 1), st.none() | st.floats(0, 1)),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(EVENTS)
def test_ledger_kept_packet_by_packet_equals_an_account_of_the_whole(events: list[tuple[Any, ...]]) -> None:
    ledger, lineage = ProtocolLedger(RULES), ProtocolLineage()
    transfers, evals = [], []
    for event in events:
        if event[0] == "eval":
            _, task, outcome, drift_risk = event
            ledger.recall_eval(("run", str(task)), outcome, drift_risk)
            evals.append((("run", str(task)), outcome, drift_risk))
            continue
        _, name, parents, task, code = event
        one = JudgedTransfer(str(name), tuple(parents), ("run", str(task)), code)
        ledger.recall_transfer(one)
        if code != "NOT_AUTHORIZED":
            lineage.declare(one.protocol_id, one.parent_protocol_ids)
            transfers.append(one)

    subjects: dict[Subject, list[JudgedTransfer]] = {}
    for one in transfers:
        subjects.setdefault(Subject(DecayScope.PROTOCOL, one.protocol_id), []).append(one)
        for root in lineage.roots(one.protocol_id):
            subjects.setdefault(Subject(DecayScope.CLUSTER, root), []).append(one)
    assert set(ledger.tallies()) == set(subjects)
    for subject, own in subjects.items():
        tasks = {one.task for one in own}
        scores = EvalTally()
        for task, outcome, drift_risk in evals:
            if task in tasks:
                scores.count(outcome, drift_risk)
        accepted = sum(one.refusal_code is None for one in own)
        expected = ProtocolTally(len(own), accepted, tasks, scores)
        assert ledger.tallies()[subject] == expected
        assert measure(ledger.tallies()[subject], RULES) == measure(expected, RULES)


@settings(max_examples=100)
@given(EVENTS)
def test_decisions_applied_from_the_log_block_the_same(events: list[tuple[Any, ...]]) -> None:
    """A takeover: another ledger hears the verdicts and the decisions of the first and covers the same protocols."""
    first, second = ProtocolLedger(RULES), ProtocolLedger(RULES)
    now = NOW
    for event in events:
        now += HALF_LIFE / 7
        if event[0] == "eval":
            _, task, outcome, drift_risk = event
            decisions = first.note_eval(("run", str(task)), outcome, drift_risk, now)
            second.recall_eval(("run", str(task)), outcome, drift_risk)
            for decision in decisions:
                second.apply(decision)
        else:
            _, name, parents, task, code = event
            is_blocked = not first.decayed(now).isdisjoint({name, *parents})
            code = "PROTOCOL_DECAYED" if is_blocked else code
            one = JudgedTransfer(str(name), tuple(parents), ("run", str(task)), code)
            decisions = first.note_transfer(one, now)
            for decision in decisions:
                if decision.kind is DecayKind.RECOVERED:
                    second.apply(decision)
            second.recall_transfer(one)
            for decision in decisions:
                if decision.kind is DecayKind.BLOCKED:
                    second.apply(decision)
        assert all(decision.is_justified(RULES) for decision in decisions)
        assert second.decayed(now) == first.decayed(now)
        assert second.tallies() == first.tallies()
