"""Rules tried on sessions that were judged without them: packets that a pause held, and bodies that are gone."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.contracts.session.room import REGISTERED, Room, contract_of, registry, rules
from tests.orchestrator.shard.test_loading import JudgedSimulation
from tests.support.log.batch_records import BatchRecords

from apc_contracts import Packet, SignalPayload
from apc_contracts.contract.contract import Contract
from apc_contracts.judging.verdict import Verdict, VerdictKind
from apc_contracts.replay.entries import RecordedPacket
from apc_contracts.replay.what_if import Trial
from apc_contracts.vocabulary import ORCHESTRATOR, Signal
from apc_log.queries.replay import Tried, try_contract

WITHOUT = "name: plain\nextends: task"
MONDAY_9 = datetime(2026, 1, 5, 9, 30, tzinfo=UTC)


class Happened:
    """A session that was judged without the rules, and what came of trying others on it."""

    def __init__(self, contract: Contract | None = None) -> None:
        self.contract = contract or contract_of(WITHOUT)
        self.simulation = JudgedSimulation(self.contract, registry=registry(), schemas=REGISTERED, now=MONDAY_9)
        self.room = Room(self.simulation)

    def operate(self, signal: Signal) -> None:
        """Pause or resume the session."""
        self.room.accept(self.room.send("desk", SignalPayload(signal=signal), ORCHESTRATOR))

    def hold(self, *acts: Callable[[], tuple[Packet, Verdict]]) -> list[Packet]:
        """Do these acts in a pause; returns what was held."""
        self.operate(Signal.PAUSE)
        held = [act() for act in acts]
        assert all(verdict.kind is VerdictKind.HELD for _, verdict in held)
        self.operate(Signal.RESUME)
        return [packet for packet, _ in held]

    async def tried(self, contract: Contract, *, without: Packet | None = None) -> tuple[Tried, dict[str, str]]:
        """Return what a trial of a contract says: what was read, and packet -> what it would have been."""
        records = BatchRecords([batch.seal(0, 1) for batch in self.simulation.batches])
        for entries in records.entries.values():
            for index, entry in enumerate(entries):
                if without is not None and isinstance(entry, RecordedPacket) and entry.packet_id == without.packet_id:
                    entries[index] = replace(entry, body=None)
        trial = Trial(contract)
        tried = await try_contract(records, ["s-1"], [self.contract], trial, "task")
        return tried, {str(one.packet_id): f"{one.was} -> {one.would_be}" for one in trial.changes}


async def test_what_a_pause_held_is_tried_when_it_was_released() -> None:
    """On arrival no rule judges it: the pause comes first."""
    happened = Happened()
    first, second = happened.hold(
        lambda: happened.room.action(note="first"), lambda: happened.room.action(note="second")
    )

    tried, changes = await happened.tried(rules('count("acts") < 1', counters="{acts: {for: action/1}}"))
    allowed = await happened.tried(rules('count("acts") < 2', counters="{acts: {for: action/1}}"))

    assert (tried.sessions, tried.unreadable) == (1, {})
    assert changes == {str(second.packet_id): "accepted -> refused RULE_FAILED r0"}
    assert str(first.packet_id) not in changes
    assert allowed[1] == {}


async def test_what_was_refused_at_its_release_is_tried_too() -> None:
    happened = Happened(rules("session.age_s < 0"))
    (held,) = happened.hold(happened.room.action)

    assert happened.simulation.session.identities[held.packet_id].refusal is not None
    assert (await happened.tried(rules("true")))[1] == {str(held.packet_id): "refused RULE_FAILED r0 -> accepted"}
    assert (await happened.tried(rules("session.age_s < 0")))[1] == {}


async def test_evidence_and_approvals_of_a_held_packet_are_those_of_its_release() -> None:
    happened = Happened()
    ground = happened.room.finding()
    happened.room.approved()
    happened.operate(Signal.PAUSE)
    used, again = happened.room.action([ground], risk="high"), happened.room.action([ground], risk="high", cents=0)
    happened.operate(Signal.RESUME)
    assert used[1].kind is VerdictKind.HELD

    _, changes = await happened.tried(rules('cited("finding/1") >= 1', 'approved_by("lead")'))

    assert changes == {str(again[0].packet_id): "accepted -> refused RULE_FAILED r1"}


@pytest.mark.parametrize("is_erased", [False, True])
async def test_a_session_whose_bodies_are_gone_is_named(is_erased: bool) -> None:
    """What came before is tried; what follows cannot be, for nobody knows what the erased packet would count."""
    happened = Happened()
    before = happened.room.action(note="before")[0]
    erased = happened.room.action(note="erased")[0]
    after = happened.room.action(note="after")[0]

    tried, changes = await happened.tried(rules("false"), without=erased if is_erased else None)

    assert set(changes) == {str(one.packet_id) for one in ([before] if is_erased else [before, erased, after])}
    assert tried.sessions == (0 if is_erased else 1)
    assert list(tried.unreadable) == (["s-1"] if is_erased else [])
    if is_erased:
        assert f"the body of packet {erased.packet_id} is encrypted or was erased" in tried.unreadable["s-1"]
