"""Entries about effects: each counts once, moves nothing, and tells rules where the effect stands."""

from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts.session.conftest import Simulation

from apc_contracts.contract.contract import Contract, load_contract
from apc_contracts.replay.entries import RecordedHop
from apc_contracts.replay.hop_receipts import receipts_of
from apc_contracts.session import session as sessions
from apc_contracts.session.advance import advance
from apc_contracts.session.movement import Hop, ReceiptsInput
from apc_contracts.session.session import EFFECT_STATES, ReportedEffects
from apc_contracts.wire.receipts import EffectEntry, EffectReport, Receipt, ReceiptKind

from ..path.way import brief

CONTRACT = load_contract()
ENTRY = EffectEntry
FIRST, SECOND = UUID(int=1), UUID(int=2)
PACKET = UUID(int=3)


def send(simulation: Simulation) -> Any:
    start = simulation.start()
    simulation.acknowledge()
    packet, _ = simulation.send("librarian", brief(), "red-1", parent=start, keys=("a",))
    return packet


def told(packet_id: UUID, simulation: Simulation, entry: EffectEntry, claim: UUID = FIRST, **fields: Any) -> Receipt:
    report = EffectReport(key="charge", claim=claim, entry=entry, **fields.pop("report", {}))
    given: dict[str, Any] = {"recipient": "red-1", "attempt": 1, "at": simulation.now} | fields
    return Receipt(packet_id=packet_id, session_id="s-1", kind=ReceiptKind.EFFECT, effect=report, **given)


def report(simulation: Simulation, contract: Contract, receipt: Receipt) -> list[Hop]:
    return advance(simulation.session, ReceiptsInput((receipt,), simulation.now), contract).effects.hops


def test_an_entry_is_a_hop_that_moves_nothing(simulation: Simulation, contract: Contract) -> None:
    packet = send(simulation)
    simulation.session.document.dead_agents.append("red-1")
    before = simulation.session.document.encode()
    receipt = told(packet.packet_id, simulation, ENTRY.MADE, attempt=2, report={"reference": "r-17"})
    (hop,) = report(simulation, contract, receipt)
    assert (hop.from_state, hop.to_state, hop.events, hop.actor) == ("", "", ["effect_made"], "red-1")
    assert hop.attempt < 0
    assert (hop.metadata or {})["effect"]["reference"] == "r-17"
    (progress,) = simulation.session.open[packet.packet_id].recipients.values()
    assert (progress.state, progress.attempt, progress.is_open) == ("ROUTED", 1, True)
    assert "red-1" not in simulation.session.document.dead_agents
    simulation.session.document.dead_agents.append("red-1")
    assert simulation.session.document.encode() == before


def test_each_entry_counts_once_and_has_a_number(simulation: Simulation, contract: Contract) -> None:
    packet = send(simulation)
    numbers = []
    for entry, claim in [
        (ENTRY.CLAIMED, FIRST),
        (ENTRY.CLAIMED, FIRST),
        (ENTRY.UNKNOWN, FIRST),
        (ENTRY.CLAIMED, SECOND),
    ]:
        numbers.append(
            [hop.attempt for hop in report(simulation, contract, told(packet.packet_id, simulation, entry, claim))]
        )
    assert numbers == [[-1], [], [-2], [-3]]


def test_it_counts_after_the_end_of_its_delivery(simulation: Simulation, contract: Contract) -> None:
    packet = send(simulation)
    simulation.receipts(packet, "red-1")
    assert packet.packet_id not in simulation.session.open
    (hop,) = report(simulation, contract, told(packet.packet_id, simulation, ENTRY.SETTLED, by="librarian"))
    assert hop.actor == "librarian"


@pytest.mark.parametrize("is_unknown", [False, True])
def test_who_did_not_get_the_packet_reports_nothing(
    simulation: Simulation, contract: Contract, is_unknown: bool
) -> None:
    packet = send(simulation)
    packet_id, agent = (uuid4(), "red-1") if is_unknown else (packet.packet_id, "blue-1")
    receipt = told(packet_id, simulation, ENTRY.MADE, recipient=agent)
    effects = advance(simulation.session, ReceiptsInput((receipt,), simulation.now), contract).effects
    assert (effects.hops, effects.misdirected) == ([], [receipt])
    assert simulation.session.effect("charge") == "absent"


def test_an_agent_fills_only_its_own_room(
    simulation: Simulation, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "EFFECT_ENTRIES", 2)
    packet = send(simulation)
    receipts = [told(packet.packet_id, simulation, ENTRY.CLAIMED, uuid4()) for _ in range(3)]
    effects = [advance(simulation.session, ReceiptsInput((one,), simulation.now), contract).effects for one in receipts]
    assert [len(one.hops) for one in effects] == [1, 1, 0]
    assert effects[-1].surplus == [receipts[-1]]


@settings(max_examples=20)
@given(
    st.sampled_from(EffectEntry),
    st.uuids(),
    st.integers(1, 9),
    st.text(max_size=20) | st.none(),
    st.sampled_from([None, "librarian", "red-1"]),
)
def test_a_hop_gives_its_receipt_back(
    entry: EffectEntry, claim: UUID, attempt: int, note: str | None, by: str | None
) -> None:
    simulation = Simulation(CONTRACT)
    packet = send(simulation)
    receipt = told(packet.packet_id, simulation, entry, claim, attempt=attempt, by=by, report={"note": note})
    (hop,) = report(simulation, CONTRACT, receipt)
    place = {"shard": 0, "seq": 1, "epoch": 1, "batch_no": 1}
    recorded = RecordedHop(
        **place,
        packet_id=hop.packet_id,
        recipient=hop.recipient,
        attempt=hop.attempt,
        from_state=hop.from_state,
        to_state=hop.to_state,
        events=tuple(hop.events),
        occurred_at=tuple(hop.occurred_at),
        actor=hop.actor,
        metadata=hop.metadata,
    )
    (found,) = receipts_of(recorded, "s-1")
    assert found.effect == receipt.effect
    assert (found.attempt, found.at, found.by or "red-1") == (attempt, receipt.at, by or "red-1")


@pytest.mark.parametrize(
    ("entries", "state"),
    [
        ([], "absent"),
        ([(FIRST, ENTRY.CLAIMED)], "claimed"),
        ([(FIRST, ENTRY.CLAIMED), (FIRST, ENTRY.UNKNOWN)], "unknown"),
        ([(FIRST, ENTRY.CLAIMED), (FIRST, ENTRY.MADE)], "made"),
        ([(FIRST, ENTRY.MADE), (FIRST, ENTRY.CLAIMED)], "made"),
        ([(FIRST, ENTRY.UNKNOWN), (FIRST, ENTRY.MADE)], "made"),
        ([(FIRST, ENTRY.CLAIMED), (FIRST, ENTRY.RELEASED)], "absent"),
        ([(FIRST, ENTRY.RELEASED), (FIRST, ENTRY.UNKNOWN)], "absent"),
        ([(FIRST, ENTRY.UNKNOWN), (FIRST, ENTRY.SETTLED)], "settled"),
        # Claimed again: the earlier claim was released, whether or not that was reported.
        ([(FIRST, ENTRY.UNKNOWN), (SECOND, ENTRY.CLAIMED)], "claimed"),
        ([(FIRST, ENTRY.UNKNOWN), (SECOND, ENTRY.MADE)], "made"),
        ([(FIRST, ENTRY.MADE), (SECOND, ENTRY.RELEASED)], "made"),
    ],
)
def test_where_an_effect_stands(entries: list[tuple[UUID, EffectEntry]], state: str) -> None:
    effects = ReportedEffects()
    for claim, entry in entries:
        effects.note(PACKET, "red-1", "charge", claim, entry)
    assert effects.state_of("charge") == state


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([FIRST, SECOND]), st.sampled_from(EffectEntry))))
def test_the_worst_of_all_agents_counts(entries: list[tuple[str, UUID, EffectEntry]]) -> None:
    together, apart = ReportedEffects(), {"a": ReportedEffects(), "b": ReportedEffects()}
    for agent, claim, entry in entries:
        for effects in (together, apart[agent]):
            if not effects.knows(PACKET, agent, "charge", claim, entry):
                effects.note(PACKET, agent, "charge", claim, entry)
    worst = max((one.state_of("charge") for one in apart.values()), key=EFFECT_STATES.index)
    assert together.state_of("charge") == worst
    assert together.state_of("another") == "absent"
