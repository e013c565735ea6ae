"""TRANSFERs through the gate: held in the log, judged at the barrier of another tenure, told, recorded, listed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.contracts.session.path.test_transfers import offer
from tests.contracts.session.path.way import brief, evaluation
from tests.orchestrator.conftest import House

from apc_contracts import IdeaPayload, NackPayload, Packet, ProofBundle, SignalPayload, load_contract, read_packet
from apc_contracts.admission.recorded import judge_recorded
from apc_contracts.contract.contract import contract_from_bytes
from apc_contracts.payloads.by_type import Payload
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, RunPhase, Signal
from apc_log.queries import get_packet_timeline, list_arbitrations

Build = Callable[..., Packet]


def early_transfers() -> bytes:
    """Return the packaged contract, its first two windows moved: transfers from generation 1 on."""
    document = load_contract().file.model_dump(mode="json", by_alias=True, exclude_none=True)
    first, second, *_ = document["transfer_windows"]
    first["last_generation"], second["first_generation"] = 0, 1
    for edge in document["machines"]["inter_agent_coordination"]["edges"]:
        if edge["event"] == "generation_window_open":
            edge["guard"] = "generation >= 1.0"
    return orjson.dumps(document)


class Play:
    """A session of red and blue, played by hand."""

    def __init__(self, house: House, packet: Build, opening: Packet) -> None:
        self.house, self.packet, self.opening = house, packet, opening
        self.nacks: dict[str, str] = {}
        """packet_id -> code of the NACK."""

    async def send(self, agent: str, payload: Payload, to: tuple[str, ...], phase: str, **fields: Any) -> Packet:
        sent = self.packet(agent, payload, to, phase=RunPhase(phase), parent=self.opening, **fields)
        await self.house.publish(sent)
        return sent

    async def handle_all(self) -> None:
        await self.house.quiet()
        for agent in ("red-1", "blue-1", "sentinel", "librarian"):
            for packet in await self.house.handle(agent):
                if packet.packet_type is PacketType.NACK:
                    told: Any = packet.metadata
                    refused = packet.payload_as(NackPayload).acked_packet_id
                    self.nacks[str(refused)] = told["refusal"]["code"]
        await self.house.quiet()

    async def research(self) -> None:
        await self.house.publish(self.opening)
        await self.handle_all()
        for agent, keys in (("red-1", ("a", "b")), ("blue-1", ("c", "d"))):
            await self.send("librarian", brief(), (agent,), "RESEARCH", keys=keys)
        await self.handle_all()
        for agent in ("red-1", "blue-1"):
            await self.send(agent, SignalPayload(signal=Signal.SYNC), (ORCHESTRATOR,), "RESEARCH")
        await self.handle_all()

    async def generation(self, number: int, phase: str) -> None:
        """Red is verified at 1, blue at about 0.001."""
        evidence = await self.house.artifacts.put(b"measured")
        proof = ProofBundle(evidence_refs=(evidence,), falsifiers=())
        sent = [
            await self.send(agent, evaluation(outcome), ("sentinel",), phase, generation=number, proof_bundle=proof)
            for agent, outcome in (("red-1", 0.999), ("blue-1", 0.0))
        ]
        await self.handle_all()

        async def are_verified() -> bool:
            return {await self.house.state_of(one) for one in sent} == {"ARCHIVED"}

        await self.house.until(are_verified)
        await self.house.quiet()


async def facts_of(house: House, packet: Packet) -> dict[str, Any]:
    timeline = await get_packet_timeline(house.pool, packet.packet_id)
    assert timeline is not None
    return dict(timeline.packet.facts)


@pytest.fixture
def contract_path(tmp_path: Path) -> str:
    path = tmp_path / "early-transfers.json"
    path.write_bytes(early_transfers())
    return str(path)


async def test_transfers_from_their_hold_to_the_list_of_arbitrations(
    house: House, packet: Build, start: Build, idea: IdeaPayload, contract_path: str
) -> None:
    play = Play(house, packet, start(generation_limit=2, generation_deadline_ms=600_000))
    async with house.persister():
        async with house.gate(contract=contract_path):
            await house.register()
            await play.research()
            await play.generation(0, "DISCOVERY")
            assert await house.state() == "SELECTIVE_TRANSFER"
            made = [offer(0, 0.9, parents=("p-9",), keys=("fresh",)), offer(1, 0.8), offer(2, 0.7)]
            made += [offer(3, 0.9, receiver=0.8), offer(4, 0.9, None), offer(5, 0.9)]
            sent = []
            for number, one in enumerate(made):
                to = ("sentinel",) if number == 5 else ("blue-1",)
                fields = {"generation": 1, **one}
                sent.append(await play.send("red-1", fields.pop("payload"), to, "REFINEMENT", **fields))
            await play.handle_all()
            rows = await house.pool.fetch(
                "SELECT verdict FROM apc_log.agent_packets WHERE packet_type = 'TRANSFER' ORDER BY seq"
            )
            assert [row["verdict"] for row in rows] == ["held"] * 5 + ["refused"]
            assert not await house.read("blue-1")
        async with house.gate(contract=contract_path):
            await play.generation(1, "REFINEMENT")
            delivered = {str(one.packet_id) for one in await house.handle("blue-1")}
            stale = await play.send("red-1", idea, ("sentinel",), "REFINEMENT", generation=2, keys=("fresh",))
            fresh = await play.send("red-1", idea, ("sentinel",), "REFINEMENT", generation=2, keys=("unheard",))
            again = offer(0, 0.9, parents=("p-9",), keys=("fresh",), generation=2)
            repeated = await play.send("red-1", again.pop("payload"), ("blue-1",), "REFINEMENT", **again)
            await play.handle_all()
            await play.generation(2, "REFINEMENT")
            assert await house.state() == "ARBITRATION"

    ids = [str(one.packet_id) for one in sent]
    assert not set(ids[2:]) & delivered
    assert play.nacks == {
        ids[2]: "THROTTLE_TOP_K",
        ids[3]: "THROTTLE_SCORE",
        ids[4]: "THROTTLE_TOP_K",
        ids[5]: "UNROUTABLE",
    }
    timelines = [await get_packet_timeline(house.pool, one.packet_id) for one in sent[:3]]
    assert [one.state for one in timelines if one] == ["ARCHIVED", "ARCHIVED", "REJECTED_POLICY"]
    # The takeover kept roots, symbols and holders: the IDEAs are no strangers, and the old key is no news.
    assert (await facts_of(house, stale))["warnings"] == ["strengthens_language_evolution"]
    assert "warnings" not in await facts_of(house, fresh)
    facts = await facts_of(house, repeated)
    assert facts["transfer"]["holders"] == ["blue", "red"]
    assert set(facts["warnings"]) == {"supports_competition", "strengthens_language_evolution"}

    candidates, second, first = await list_arbitrations(house.pool, run_id="run-1")
    assert [row.subject for row in (first, second, candidates)] == ["transfers", "transfers", "candidates"]
    assert [str(one) for one in first.selected] == ids[:2]
    assert first.winner_candidate_id == ids[0]
    assert {one.candidate_id: one.refused_with for one in first.candidates if one.refused_with} == {
        ids[2]: ("THROTTLE_TOP_K",),
        ids[3]: ("THROTTLE_SCORE",),
        ids[4]: ("THROTTLE_TOP_K",),
    }
    assert first.candidates[-1].candidate_id == "none"
    assert first.candidates[0].total_score == pytest.approx((0.8 + 0.25 * 0.5) / 1.3)
    assert candidates.winner_candidate_id.startswith("red.")
    assert len(candidates.selected) == 1
    assert [row.packet_id for row in await list_arbitrations(house.pool, limit=1)] == [candidates.packet_id]
    assert await list_arbitrations(house.pool, session_id="another") == []
    began, ended = first.judged_at, candidates.judged_at
    in_time = await list_arbitrations(house.pool, run_id="run-1", since=second.judged_at, until=ended)
    assert [row.packet_id for row in in_time] == ([second.packet_id] if second.judged_at < ended else [])
    assert await list_arbitrations(house.pool, until=began) == []
    lineage = await house.pool.fetchrow(
        "SELECT protocol_id, to_swarm FROM apc_log.packet_lineage WHERE packet_id = $1", first.packet_id
    )
    assert lineage is not None and tuple(lineage) == ("p-0", None)
    await rulings_replay(house)


async def rulings_replay(house: House) -> None:
    """Each ruling at a barrier that refused comes out again from its bytes and facts, but for the rank."""
    contract = contract_from_bytes(early_transfers())
    rows = await house.pool.fetch(
        """
        SELECT packet.body_stored, event.metadata FROM apc_log.packet_events AS event
        JOIN apc_log.agent_packets AS packet USING (session_id, packet_id)
        WHERE event.from_state = 'SCHEMA_VALIDATED' AND packet.packet_type = 'TRANSFER'
        """
    )
    assert len(rows) == 6
    for row in rows:
        metadata = orjson.loads(row["metadata"])
        refusal, facts = metadata.get("refusal"), metadata["facts"]
        again = judge_recorded(read_packet(row["body_stored"]), facts, contract).refusal
        is_beyond = refusal is not None and refusal["rule"] == "rank_transfers"
        assert is_beyond == (facts["rank"] > 2)
        assert (again.document if again else None) == (None if is_beyond else refusal)
