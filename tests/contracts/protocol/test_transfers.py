"""Who goes through: scores, ranking, and the offline arbitration of a file."""

import json
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_contracts import Packet, PacketType, RunPhase
from apc_contracts.contract.contract import Contract, load_contract
from apc_contracts.payloads.by_type import TransferPayload
from apc_contracts.protocol.transfer_arbitration import arbitrate_offline
from apc_contracts.protocol.transfers import rank_transfers, score_transfer

from ..scene import PACKET_ID, Scene, document, received, session_in


def transfer(number: int = 0, **changes: Any) -> Packet:
    return received(PacketType.TRANSFER, **changed(number, **changes)).packet


def body(number: int = 0, **changes: Any) -> bytes:
    return json.dumps(document(PacketType.TRANSFER, **changed(number, **changes))).encode()


def changed(number: int, **changes: Any) -> dict[str, Any]:
    packet_id = str(UUID(int=UUID(PACKET_ID).int + number))
    return {"packet_id": packet_id, "trace__root_packet_id": packet_id, "run_phase": "CONVERGENCE", **changes}


def test_selection_score(contract: Contract) -> None:
    score = score_transfer(transfer(lineage__cross_use_case=True), contract)

    assert score.selection_score == pytest.approx(0.3 + 0.25 * 0.8 + 0.05)
    assert score.total_score == pytest.approx(score.selection_score / 1.3)
    assert score.recommended_accept
    assert sum(score.components.values()) == score.selection_score


def test_a_lower_sender_is_not_recommended(contract: Contract) -> None:
    for sender in (0.6, 0.1):
        score = score_transfer(transfer(payload__sender_score=sender), contract)
        assert not score.recommended_accept
        assert score.selection_score == pytest.approx(0.25 * 0.8)


def test_the_best_possible_is_one(contract: Contract) -> None:
    best = transfer(payload__sender_score=1, payload__receiver_score=0, confidence=1, lineage__cross_use_case=True)

    assert score_transfer(best, contract).total_score == pytest.approx(1.0)


def test_verified_scores_speak(contract: Contract) -> None:
    session = session_in(RunPhase.CONVERGENCE, verified_scores={"linear": 0.7, "trees": 0.65})
    boasting = session_in(RunPhase.CONVERGENCE, verified_scores={"linear": 1.0, "trees": 0.1})

    assert score_transfer(transfer(), contract, session).components["score_difference"] == pytest.approx(0.05)
    assert score_transfer(transfer(), contract, boasting).components["score_difference"] == pytest.approx(0.3)


def test_the_smallest_top_k_of_the_group_counts(contract: Contract) -> None:
    packets = [
        transfer(1, payload__sender_score=0.7),
        transfer(2, payload__sender_score=0.9, payload__transfer_policy__top_k=1),
        transfer(3, payload__sender_score=0.8),
        transfer(4, payload__sender_score=0.65, payload__to_swarm="knn"),
    ]
    ranked = rank_transfers(packets, contract)

    assert [row.packet.payload_as(TransferPayload).sender_score for row in ranked] == [0.9, 0.8, 0.7, 0.65]
    assert [row.rank for row in ranked] == [1, 2, 3, 1]
    assert [row.refusal.code if row.refusal else None for row in ranked] == [
        None,
        "THROTTLE_TOP_K",
        "THROTTLE_TOP_K",
        None,
    ]


def test_the_window_caps_a_group_without_top_k(contract: Contract) -> None:
    policy = {"mode": "WINNER_TO_LOSERS"}
    packets = [transfer(number, payload__transfer_policy=policy) for number in range(4)]

    assert [row.refusal is None for row in rank_transfers(packets, contract)] == [True, True, False, False]


def test_ties_go_to_the_smaller_packet_id(contract: Contract) -> None:
    ranked = rank_transfers([transfer(3), transfer(1), transfer(2)], contract)

    assert [row.packet.packet_id.int - UUID(PACKET_ID).int for row in ranked] == [1, 2, 3]


SCORES = st.floats(0, 1).map(lambda score: round(score, 2))
POOL = st.lists(st.tuples(SCORES, SCORES, SCORES, st.sampled_from(["trees", "knn"]), st.integers(1, 3)), max_size=8)


@given(POOL, st.randoms(use_true_random=False))
def test_arrival_order_has_no_say(pool: list[tuple[float, float, float, str, int]], random: Random) -> None:
    packets = [
        transfer(
            number,
            payload__sender_score=sender,
            payload__receiver_score=receiver,
            confidence=confidence,
            payload__to_swarm=swarm,
            payload__transfer_policy__top_k=top_k,
        )
        for number, (sender, receiver, confidence, swarm, top_k) in enumerate(pool)
    ]
    contract = load_contract()
    ranked = rank_transfers(packets, contract)
    random.shuffle(packets)

    assert rank_transfers(packets, contract) == ranked
    for swarm in ("trees", "knn"):
        group = [row for row in ranked if row.packet.payload_as(TransferPayload).to_swarm == swarm]
        asked = [row.packet.payload_as(TransferPayload).transfer_policy.top_k for row in group]
        limit = min([2, *(top_k for top_k in asked if top_k is not None)])
        assert [row.rank for row in group] == list(range(1, len(group) + 1))
        assert sum(row.refusal is None for row in group) == min(limit, len(group))
        scores = [row.score.selection_score for row in group]
        assert scores == sorted(scores, reverse=True)


def test_arbitration_of_a_file(contract: Contract) -> None:
    bodies = [
        body(1, payload__sender_score=0.7),
        body(2, payload__sender_score=0.9),
        body(3, payload__sender_score=0.8),
        body(4, payload__sender_score=0.5, payload__to_swarm="knn"),
        body(5, trace__generation=3),
        json.dumps(document(PacketType.IDEA)).encode(),
        b"not json",
        b'{"packet_id": "half"}',
        body(2, payload__sender_score=0.9),
    ]
    result = arbitrate_offline(bodies, contract, top_k=2).document

    assert (result["input_count"], result["valid_transfer_count"]) == (9, 4)
    assert [row["index"] for row in result["selected"]] == [1, 2]
    assert [row["index"] for row in result["not_selected"]] == [0, 3]
    assert [row["index"] for row in result["rejected"]] == [4, 5, 6, 7, 8]
    assert set(result["selected"][0]) == {"index", "packet_id", "selection_score", "recommended_accept"}
    assert result["selected"][0]["selection_score"] == pytest.approx(0.5)
    assert result["not_selected"][0]["reason"].startswith("THROTTLE_TOP_K at payload.transfer_policy.top_k: ")
    reasons = [row["reason"].split(" ")[0] for row in result["rejected"]]
    expected = ["TRANSFER_WINDOW_CLOSED", "SCHEMA_INVALID", "MALFORMED", "SCHEMA_INVALID", "DUPLICATE_CONFLICT"]
    assert reasons == expected
    assert [row["packet_id"] for row in result["rejected"]][2:4] == [None, "half"]
    assert result["rejected"][0]["selection_score"] is not None
    assert result["rejected"][1]["selection_score"] is None


def test_top_k_caps_the_whole_file(contract: Contract) -> None:
    bodies = [body(number, payload__to_swarm=f"swarm-{number}") for number in range(4)]

    for top_k in range(5):
        result = arbitrate_offline(bodies, contract, top_k)
        assert len(result.selected) == top_k
        assert len(result.not_selected) == 4 - top_k


def test_nothing_to_arbitrate(contract: Contract) -> None:
    assert arbitrate_offline([], contract, 2).document == {
        "input_count": 0,
        "valid_transfer_count": 0,
        "selected": [],
        "not_selected": [],
        "rejected": [],
    }


def test_scene_and_file_agree(contract: Contract) -> None:
    scene = Scene(PacketType.TRANSFER, {"trace__generation": 3}, session={"generation": 3})
    refusal = scene.judge(contract).refusal
    row = arbitrate_offline([scene.received.body], contract, 2).rejected[0]

    assert refusal is not None
    assert row.reason == refusal.reason
