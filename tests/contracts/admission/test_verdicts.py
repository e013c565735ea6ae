"""What is accepted, held, a repeat or a rerun; and what a verdict is stored with."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace as altered

from apc_contracts import (
    CONTROL_TYPES,
    ORCHESTRATOR,
    PacketType,
    Right,
    RunPhase,
    SignatureState,
    VerdictKind,
    reply_id,
)
from apc_contracts.admission.admit import admit, judge_held, judge_transfer, transfer_record
from apc_contracts.admission.recorded import judge_recorded
from apc_contracts.contract.contract import Contract
from apc_contracts.judging.session_view import Part
from apc_contracts.vocabulary import TYPES_OF_1_1

from ..scene import (
    CREATED,
    HOME_PHASE,
    PACKET_ID,
    PARENT_ID,
    SPEC,
    TARGET_ID,
    Scene,
    identity,
    registration,
    under_parent,
)

OPERATOR = registration("builder-1", "builder", "linear", Right.OPERATE)
DECIDER = registration("builder-1", "builder", "linear", Right.DECIDE)
VALIDATOR = registration("builder-1", "builder", "linear", Right.VALIDATE, Right.VETO)
FROM_ORCHESTRATOR = {"sender": {"agent_id": ORCHESTRATOR, "role": ORCHESTRATOR, "swarm_id": ORCHESTRATOR}}
AS_ORCHESTRATOR = {"user_id": ORCHESTRATOR}
ARBITRATION_OF_PARENT = {PARENT_ID: identity(packet_type=PacketType.ARBITRATION)}
FOREIGN_ARTIFACT = {PARENT_ID: identity(packet_type=PacketType.ARTIFACT, run_phase=RunPhase.EXECUTION)}


def orchestrators(packet_type: PacketType, **packet: Any) -> Scene:
    return Scene(packet_type, FROM_ORCHESTRATOR | packet, facts=AS_ORCHESTRATOR)


ACCEPTED: dict[str, Scene] = {
    **{f"usual_{kind.lower()}": Scene(kind) for kind in PacketType if kind not in TYPES_OF_1_1},
    "reply": Scene(
        packet={"packet_id": str(reply_id(PARENT_ID, "builder-1", 0)), **under_parent()},
        facts={"cause": PARENT_ID, "ordinal": 0, "is_cause_delivered": True},
    ),
    "answer_to_a_nack": Scene(
        packet=under_parent(),
        session={"identities": {}},
        facts={"cause": PARENT_ID, "ordinal": 0, "is_cause_delivered": True},
    ),
    "signed": Scene(facts={"signature": SignatureState.VALID}),
    "tolerated_skew": Scene(facts={"now": CREATED - timedelta(minutes=5)}),
    "start": Scene(
        PacketType.SIGNAL,
        {"payload__signal": "START", "payload__session": SPEC},
        session=None,
        agents={"builder-1": OPERATOR},
    ),
    "presence": Scene(PacketType.HEARTBEAT, {"trace__session_id": "_presence"}, session=None),
    "operator_without_membership": Scene(
        PacketType.SIGNAL,
        {
            "payload__signal": "STOP",
            "sender": {"agent_id": "operator-1", "role": "operator", "swarm_id": "office"},
        },
    ),
    "stop_of_an_overload": Scene(
        PacketType.SIGNAL,
        {"payload__signal": "STOP"},
        agents={"builder-1": OPERATOR},
        facts={"outstanding": {"sentinel-1": 500}},
    ),
    "ready": Scene(PacketType.SIGNAL, {"payload__signal": "SYNC"}),
    "veto": Scene(PacketType.SIGNAL, {"payload__signal": "VETO"}, agents={"builder-1": VALIDATOR}),
    "control_in_pause": Scene(PacketType.ACK, session={"is_paused": True}),
    "retraction_after_the_end": Scene(
        PacketType.RETRACTION, session={"is_terminal": True, "parts": {"packets": Part("", 0)}}
    ),
    "orchestrators_retraction": orchestrators(PacketType.RETRACTION),
    "approved": Scene(
        PacketType.DECISION,
        {"payload__commitment_level": "APPROVED", **under_parent()},
        session={"identities": ARBITRATION_OF_PARENT},
        agents={"builder-1": DECIDER},
    ),
    "proposed": Scene(
        PacketType.DECISION,
        {"payload__commitment_level": "PROPOSED", **under_parent()},
        session={"identities": ARBITRATION_OF_PARENT},
    ),
    "arbitrated": Scene(PacketType.ARBITRATION, {"run_phase": "ARBITRATION"}, agents={"builder-1": DECIDER}),
    "validated": Scene(
        PacketType.EVAL,
        {"run_phase": "VALIDATION", **under_parent()},
        session={"identities": FOREIGN_ARTIFACT},
        agents={"builder-1": VALIDATOR},
    ),
    "to_all": Scene(packet={"recipients": [{"agent_id": "_all"}], "routing__delivery_mode": "BROADCAST"}),
    "transfer_to_its_whole_swarm": Scene(
        PacketType.TRANSFER,
        {"recipients": [{"agent_id": "_all", "swarm_id": "trees"}], "routing__delivery_mode": "BROADCAST"},
    ),
    "transfer_to_substrate": Scene(
        PacketType.TRANSFER,
        {"recipients": [{"agent_id": "_substrate"}], "routing__delivery_mode": "SUBSTRATE"},
    ),
    "to_substrate": Scene(packet={"recipients": [{"agent_id": "_substrate"}], "routing__delivery_mode": "SUBSTRATE"}),
    "to_orchestrator": Scene(packet={"recipients": [{"agent_id": ORCHESTRATOR}]}),
    "to_several": Scene(
        packet={
            "recipients": [{"agent_id": "sentinel-1"}, {"agent_id": ORCHESTRATOR}],
            "routing__delivery_mode": "MULTICAST",
        }
    ),
    "intra": Scene(packet={"channel": "INTRA_AGENT", "recipients": [{"agent_id": "builder-1"}]}),
    "phase_of_the_parent": Scene(packet=under_parent(), session={"phase": RunPhase.REFINEMENT}),
    "older_generation": Scene(packet={"trace__generation": 3}),
    "older_round": Scene(
        packet={"trace__generation": 17, **under_parent()},
        session={"round": 2, "generation": 2, "last_generations": {1: 17}},
    ),
    "verified_scores": Scene(
        PacketType.TRANSFER, session={"verified_scores": {"linear": 1.0, "trees": 0.2}, "accepted": {"trees": 1}}
    ),
    "bootstrap_orchestrator": replace(orchestrators(PacketType.SIGNAL), agents={ORCHESTRATOR: None}),
    "orchestrator_is_exempt": replace(
        orchestrators(PacketType.DECISION, run_phase="RESEARCH", trace__task_id="other"),
        session={
            "phase": RunPhase.PROMOTION,
            "is_terminal": True,
            "parts": {"packets": Part("", 0)},
            "is_paused": True,
        },
        facts=AS_ORCHESTRATOR | {"outstanding": {"sentinel-1": 999}},
    ),
    "commons": orchestrators(PacketType.ARTIFACT, run_phase="PROMOTION", payload__artifact_kind="PROTOCOL"),
}


@pytest.mark.parametrize("scene", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_accepted(scene: Scene, contract: Contract) -> None:
    verdict = scene.judge(contract)

    assert verdict.refusal is None
    assert verdict.kind is VerdictKind.ACCEPTED


@pytest.mark.parametrize("scene", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_accepted_again_from_its_record(scene: Scene, contract: Contract) -> None:
    verdict = scene.judge(contract)
    record = json.loads(json.dumps(verdict.facts))

    assert judge_recorded(scene.received, record, contract) == verdict
    assert len(json.dumps(verdict.facts)) < 500


def test_the_usual_record_is_small(contract: Contract) -> None:
    assert len(json.dumps(Scene().judge(contract).facts)) < 200
    assert len(json.dumps(ACCEPTED["reply"].judge(contract).facts)) < 300


@pytest.mark.parametrize("phase", [RunPhase.REFINEMENT, RunPhase.CONVERGENCE])
def test_transfer_waits_for_its_barrier(phase: RunPhase, contract: Contract) -> None:
    scene = Scene(PacketType.TRANSFER, {"run_phase": phase.value, "payload__sender_score": 0.0})

    assert scene.judge(contract).kind is VerdictKind.HELD
    refusal = judge_transfer(scene.received.packet, scene.view, scene.given, contract)
    assert (refusal is None) == (phase is RunPhase.CONVERGENCE)


def test_transfer_is_judged_by_the_generation_that_closes(contract: Contract) -> None:
    scene = Scene(PacketType.TRANSFER, {"run_phase": "CONVERGENCE"})
    packet, view, facts = scene.received.packet, scene.view, scene.given

    refusal = judge_transfer(packet, view, facts, contract, generation=10)
    assert refusal is not None
    assert refusal.code == "TRANSFER_WINDOW_CLOSED"
    record = json.loads(json.dumps(transfer_record(packet, view, facts, contract, refusal, generation=10)))
    assert judge_recorded(scene.received, record, contract).refusal == refusal


def test_barrier_asks_the_session_but_no_registry(contract: Contract) -> None:
    scene = Scene(PacketType.TRANSFER, {"run_phase": "CONVERGENCE"}, session={"tasks": frozenset()})

    refusal = judge_transfer(scene.received.packet, scene.view, altered(scene.given, registry=None), contract)
    assert refusal is not None
    assert (refusal.code, refusal.rule) == ("DRIFT_CHECK_FAILED", "within_current_scope")


@pytest.mark.parametrize("kind", sorted(set(PacketType) - CONTROL_TYPES))
def test_pause_holds_work(kind: PacketType, contract: Contract) -> None:
    scene = Scene(kind, session={"is_paused": True, "held_count": 999})

    verdict = scene.judge(contract)
    assert verdict.kind is VerdictKind.HELD
    assert judge_recorded(scene.received, verdict.facts, contract) == verdict


def test_held_is_judged_again_without_its_identity_and_budget(contract: Contract) -> None:
    scene = Scene(
        packet={"packet_id": str(reply_id(PARENT_ID, "builder-1", 0)), **under_parent()},
        session={"parts": {"packets": Part("", 0)}},
    )
    known = identity(sender="builder-1", verdict=VerdictKind.HELD)
    view = scene.view
    assert view is not None
    view = replace(view, identities={**view.identities, scene.received.packet.packet_id: known})
    facts = altered(scene.given, user_id=None)

    verdict = judge_held(scene.received.packet, view, facts, contract)
    assert verdict.kind is VerdictKind.ACCEPTED
    assert judge_recorded(scene.received, verdict.facts, contract) == verdict
    late = judge_held(scene.received.packet, view, altered(facts, now=CREATED + timedelta(hours=1)), contract)
    assert late.refusal is not None
    assert late.refusal.code == "EXPIRED"
    ended = judge_held(scene.received.packet, replace(view, is_terminal=True), facts, contract)
    assert ended.refusal is not None
    assert ended.refusal.code == "SESSION_TERMINAL"


def of_first(scene: Scene, **changes: Any) -> Scene:
    """Return the scene, in a session that knows its packet already."""
    packet = scene.received.packet
    first = identity(
        **{
            "packet_type": packet.packet_type,
            "sender": "builder-1",
            "addressed": ("sentinel-1",),
            "payload_hash": scene.received.payload_hash,
            "cause": PARENT_ID,
            **changes,
        }
    )
    return replace(scene, session={"identities": {packet.packet_id: first}})


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, VerdictKind.REPEAT),
        ({"payload_hash": b"first"}, VerdictKind.RERUN),
        ({"payload_hash": b"first", "packet_type": PacketType.CLAIM}, VerdictKind.RERUN),
        ({"payload_hash": b"first", "sender": "sentinel-1"}, VerdictKind.REFUSED),
        ({"payload_hash": b"first", "cause": TARGET_ID}, VerdictKind.REFUSED),
        ({"payload_hash": b"first", "cause": None}, VerdictKind.REFUSED),
        ({"packet_type": PacketType.CLAIM}, VerdictKind.REFUSED),
        ({"sender": "sentinel-1"}, VerdictKind.REFUSED),
        ({"addressed": ("builder-1",)}, VerdictKind.REFUSED),
        ({"cause": None}, VerdictKind.REFUSED),
    ],
)
def test_known_id(changes: dict[str, Any], kind: VerdictKind, contract: Contract) -> None:
    scene = of_first(Scene(facts={"cause": PARENT_ID, "is_cause_delivered": True}), **changes)

    verdict = scene.judge(contract)
    assert verdict.kind is kind
    assert judge_recorded(scene.received, json.loads(json.dumps(verdict.facts)), contract) == verdict


def test_same_bytes_are_a_repeat_whatever_the_headers_say(contract: Contract) -> None:
    scene = Scene()
    same = of_first(scene, packet_hash=scene.received.packet_hash, cause=TARGET_ID, sender="sentinel-1")

    assert same.judge(contract).kind is VerdictKind.REPEAT


def test_without_cause_other_content_is_a_conflict(contract: Contract) -> None:
    verdict = of_first(Scene(), cause=None, payload_hash=b"first").judge(contract)

    assert verdict.refusal is not None
    assert verdict.refusal.code == "DUPLICATE_CONFLICT"


def test_warnings_do_not_refuse(contract: Contract) -> None:
    stale = Scene(packet={"symbolic_keys": ["stale"]})
    crowded = Scene(
        PacketType.TRANSFER,
        session={"protocols": {"proto-1": frozenset({"knn", "bayes"})}},
    )

    for scene, name in ((stale, "strengthens_language_evolution"), (crowded, "supports_competition")):
        verdict = scene.judge(contract)
        assert verdict.kind is VerdictKind.ACCEPTED
        assert [warning.rule for warning in verdict.warnings] == [name]
        assert judge_recorded(scene.received, json.loads(json.dumps(verdict.facts)), contract) == verdict


def test_a_new_parent_protocol_is_news(contract: Contract) -> None:
    lineage = {"protocol_id": "proto-1", "transfer_mode": "WINNER_TO_LOSERS", "parent_protocol_ids": ["proto-0"]}
    scene = Scene(PacketType.TRANSFER, {"symbolic_keys": ["stale"], "lineage": lineage})

    assert scene.judge(contract).warnings == ()


def test_offline_judges_what_needs_nobody(contract: Contract) -> None:
    for kind in set(PacketType) - TYPES_OF_1_1:
        scene = Scene(kind, {"trace__task_id": "other"}, session=None)
        facts = altered(scene.given, registry=None, user_id=None)
        assert admit(scene.received.packet, None, facts, contract).kind is VerdictKind.ACCEPTED, kind
    assert set(HOME_PHASE) < set(PacketType)
    assert UUID(PACKET_ID) != TARGET_ID
