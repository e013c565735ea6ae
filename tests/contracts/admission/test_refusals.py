"""Every refusal code of the gate, with its path; the order; and the same verdict again from its record."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from apc_contracts import PacketType, Right, RunPhase, SignatureState, VerdictKind, reply_id
from apc_contracts.admission import RULES, judge_recorded
from apc_contracts.contract.contract import Contract, task_contract
from apc_contracts.judging.loop_state import IdleChain, LoopState
from apc_contracts.judging.session_view import Part

from ..scene import CREATED, PACKET_ID, PARENT_ID, SPEC, TARGET_ID, Scene, identity, registration, under_parent

BUILDER = registration("builder-1", "builder", "linear")
SENTINEL = registration("sentinel-1", "sentinel", "trees")
OPERATOR = registration("builder-1", "builder", "linear", Right.OPERATE)
VALIDATOR = registration("builder-1", "builder", "linear", Right.VALIDATE)
OTHER = UUID("0190a5f2-9999-7222-8333-444455556666")
REPLY: dict[str, Any] = {"packet_id": str(reply_id(PARENT_ID, "builder-1", 0))}
REPLY |= {"trace__root_packet_id": REPLY["packet_id"]}
START: dict[str, Any] = {"payload__signal": "START", "payload__session": SPEC}
POLICY = "payload.transfer_policy"

Expected = tuple[Scene, str, str]


def idea(**given: Any) -> Scene:
    return Scene(PacketType.IDEA, **given)


def signal(session: dict[str, Any] | None = None, **packet: Any) -> Scene:
    return Scene(PacketType.SIGNAL, packet, session={} if session is None else session)


def task_ir(session: dict[str, Any]) -> Scene:
    """It reserves 50 packets for a task."""
    budget = {"type": "Constraint", "id": "k-1", "constraint_kind": "BUDGET", "expression": "packets=50"}
    return Scene(PacketType.TASK_IR, {"run_phase": "DISCOVERY", "payload__objects": [budget]}, session=session)


def transfer(session: dict[str, Any] | None = None, facts: dict[str, Any] | None = None, **packet: Any) -> Scene:
    return Scene(PacketType.TRANSFER, packet, session={} if session is None else session, facts=facts or {})


def outside(scene: Scene) -> Scene:
    return replace(scene, session=None)


def with_policy(**policy: Any) -> dict[str, Any]:
    return {"payload__transfer_policy": {"mode": "WINNER_TO_LOSERS", "top_k": 2, **policy}}


def eval_of_artifact(**agents: Any) -> Scene:
    parent = identity(packet_type=PacketType.ARTIFACT, run_phase=RunPhase.EXECUTION, swarm_id="linear")
    return Scene(
        PacketType.EVAL,
        {"run_phase": "VALIDATION", **under_parent()},
        session={"identities": {PARENT_ID: parent}},
        agents=agents,
    )


CASES: dict[str, Expected] = {
    "copies": (idea(facts={"has_copy_headers": True}), "SENDER_MISMATCH", "$"),
    "no_user": (idea(facts={"user_id": None}), "SENDER_MISMATCH", "sender.agent_id"),
    "other_user": (idea(facts={"user_id": "agent.sentinel-1"}), "SENDER_MISMATCH", "sender.agent_id"),
    "forged_orchestrator": (
        idea(packet={"sender__agent_id": "orchestrator"}, facts={"user_id": "agent.builder-1"}),
        "SENDER_MISMATCH",
        "sender.agent_id",
    ),
    "orchestrator_over_the_broker": (
        idea(packet={"sender__agent_id": "orchestrator"}, facts={"user_id": "orchestrator", "is_received": True}),
        "SENDER_MISMATCH",
        "sender.agent_id",
    ),
    "unregistered_orchestrator": (
        idea(
            packet={"sender__agent_id": "orchestrator"},
            facts={"user_id": "agent.builder-1"},
            agents={"orchestrator": None},
        ),
        "SENDER_MISMATCH",
        "sender.agent_id",
    ),
    "unknown_sender": (idea(agents={"builder-1": None}), "UNKNOWN_SENDER", "sender.agent_id"),
    "revoked_sender": (
        idea(agents={"builder-1": replace(BUILDER, is_revoked=True)}),
        "UNKNOWN_SENDER",
        "sender.agent_id",
    ),
    "bad_signature": (idea(facts={"signature": SignatureState.INVALID}), "BAD_SIGNATURE", "$"),
    "id_taken": (
        idea(session={"identities": {UUID(PACKET_ID): identity()}}),
        "DUPLICATE_CONFLICT",
        "packet_id",
    ),
    "v5_without_cause": (idea(packet=REPLY), "DUPLICATE_CONFLICT", "packet_id"),
    "v5_of_other_ordinal": (
        idea(packet=REPLY, facts={"cause": PARENT_ID, "ordinal": 1, "is_cause_delivered": True}),
        "DUPLICATE_CONFLICT",
        "packet_id",
    ),
    "v5_cause_not_delivered": (
        idea(packet=REPLY, facts={"cause": PARENT_ID, "ordinal": 0}),
        "DUPLICATE_CONFLICT",
        "packet_id",
    ),
    "expired_by_ttl": (idea(facts={"now": CREATED + timedelta(minutes=1)}), "EXPIRED", "routing.ttl_ms"),
    "expired_by_time": (idea(packet={"expires_at": "2026-02-19T07:50:00.5Z"}), "EXPIRED", "expires_at"),
    "clock_skew": (
        idea(facts={"now": CREATED - timedelta(minutes=5, milliseconds=1)}),
        "CLOCK_SKEW",
        "created_at",
    ),
    "other_shard": (idea(facts={"hashes_to_shard": False}), "UNKNOWN_SESSION", "trace.session_id"),
    "no_session": (outside(idea()), "UNKNOWN_SESSION", "trace.session_id"),
    "presence_is_for_heartbeats": (
        outside(idea(packet={"trace__session_id": "_presence"})),
        "UNKNOWN_SESSION",
        "trace.session_id",
    ),
    "reserved_session": (
        outside(signal(trace__session_id="_mine", **START)),
        "UNKNOWN_SESSION",
        "trace.session_id",
    ),
    "start_without_spec": (outside(signal(payload__signal="START")), "UNKNOWN_SESSION", "payload.session"),
    "terminal": (idea(session={"is_terminal": True, "state": "HALTED"}), "SESSION_TERMINAL", "trace.session_id"),
    "terminal_signal": (signal(session={"is_terminal": True}), "SESSION_TERMINAL", "trace.session_id"),
    "paused_and_full": (
        idea(session={"is_paused": True, "held_count": 1000}),
        "SESSION_PAUSED",
        "trace.session_id",
    ),
    "other_role": (idea(packet={"sender__role": "judge"}), "NOT_AUTHORIZED", "sender.role"),
    "other_swarm": (idea(packet={"sender__swarm_id": "trees"}), "NOT_AUTHORIZED", "sender.swarm_id"),
    "no_member": (idea(session={"members": frozenset()}), "NOT_AUTHORIZED", "sender.agent_id"),
    "reserved_run": (idea(packet={"trace__run_id": "_run"}), "NOT_AUTHORIZED", "trace.run_id"),
    "reserved_task": (idea(packet={"trace__task_id": "_task"}), "NOT_AUTHORIZED", "trace.task_id"),
    **{
        f"{name.lower()}_without_right": (signal(payload__signal=name), "NOT_AUTHORIZED", "payload.signal")
        for name in ("STOP", "PAUSE", "RESUME", "CANCEL", "VETO")
    },
    "start_without_right": (outside(signal(**START)), "NOT_AUTHORIZED", "payload.signal"),
    "start_twice": (
        replace(signal(**START), agents={"builder-1": OPERATOR}),
        "NOT_AUTHORIZED",
        "trace.session_id",
    ),
    "start_with_reserved_agent": (
        replace(
            outside(signal(**START | {"payload__session__swarms__0__agents__0": "orchestrator"})),
            agents={"builder-1": OPERATOR},
        ),
        "NOT_AUTHORIZED",
        "payload.session.swarms[0].agents[0]",
    ),
    "heartbeat_with_a_command": (
        Scene(PacketType.HEARTBEAT, {"payload__signal": "STOP"}),
        "NOT_AUTHORIZED",
        "payload.signal",
    ),
    "sync_with_state": (
        signal(
            payload__signal="SYNC",
            payload__session={
                "state": "PROMOTION",
                "run_phase": "PROMOTION",
                "round": 1,
                "generation": 1,
                "step": 1,
                "paused": False,
                "scores": {},
                "subjects": [],
            },
        ),
        "NOT_AUTHORIZED",
        "payload.session",
    ),
    "transfer_of_another_swarm": (transfer(payload__from_swarm="trees"), "NOT_AUTHORIZED", "payload.from_swarm"),
    "retraction_of_anothers": (
        Scene(PacketType.RETRACTION, session={"identities": {TARGET_ID: identity()}}),
        "NOT_AUTHORIZED",
        "payload.target_packet_id",
    ),
    "arbitration_without_right": (
        Scene(PacketType.ARBITRATION, {"run_phase": "ARBITRATION"}),
        "NOT_AUTHORIZED",
        "packet_type",
    ),
    "decision_without_right": (
        Scene(
            PacketType.DECISION,
            {"payload__commitment_level": "APPROVED", **under_parent()},
            session={"identities": {PARENT_ID: identity(packet_type=PacketType.ARBITRATION)}},
        ),
        "NOT_AUTHORIZED",
        "payload.commitment_level",
    ),
    "validation_without_right": (eval_of_artifact(), "NOT_AUTHORIZED", "sender.agent_id"),
    "validation_by_the_maker": (
        eval_of_artifact(**{"builder-1": VALIDATOR}),
        "NOT_AUTHORIZED",
        "sender.swarm_id",
    ),
    "unknown_recipient": (idea(agents={"sentinel-1": None}), "UNROUTABLE", "recipients[0]"),
    "revoked_recipient": (
        idea(agents={"sentinel-1": replace(SENTINEL, is_revoked=True)}),
        "UNROUTABLE",
        "recipients[0]",
    ),
    "deaf_recipient": (
        idea(agents={"sentinel-1": replace(SENTINEL, handles=frozenset({PacketType.CLAIM}))}),
        "UNROUTABLE",
        "recipients[0]",
    ),
    "reserved_recipient": (
        idea(packet={"recipients": [{"agent_id": "_all"}]}),
        "UNROUTABLE",
        "recipients[0]",
    ),
    "direct_to_two": (
        idea(packet={"recipients": [{"agent_id": "sentinel-1"}, {"agent_id": "builder-1"}]}),
        "UNROUTABLE",
        "recipients",
    ),
    "multicast_with_a_stranger": (
        idea(
            packet={
                "recipients": [{"agent_id": "sentinel-1"}, {"agent_id": "nobody"}],
                "routing__delivery_mode": "MULTICAST",
            }
        ),
        "UNROUTABLE",
        "recipients[1]",
    ),
    "multicast_twice": (
        idea(
            packet={
                "recipients": [{"agent_id": "sentinel-1"}, {"agent_id": "sentinel-1"}],
                "routing__delivery_mode": "MULTICAST",
            }
        ),
        "UNROUTABLE",
        "recipients[1]",
    ),
    "broadcast_to_one": (idea(packet={"routing__delivery_mode": "BROADCAST"}), "UNROUTABLE", "recipients"),
    "substrate_to_all": (
        idea(packet={"routing__delivery_mode": "SUBSTRATE", "recipients": [{"agent_id": "_all"}]}),
        "UNROUTABLE",
        "recipients",
    ),
    "transfer_to_another_swarm": (
        Scene(PacketType.TRANSFER, {"payload__to_swarm": "knn"}),
        "UNROUTABLE",
        "recipients[0]",
    ),
    "transfer_to_all_swarms": (
        Scene(PacketType.TRANSFER, {"recipients": [{"agent_id": "_all"}], "routing__delivery_mode": "BROADCAST"}),
        "UNROUTABLE",
        "recipients[0]",
    ),
    "intra_to_another": (idea(packet={"channel": "INTRA_AGENT"}), "UNROUTABLE", "recipients[0]"),
    "other_phase": (idea(session={"phase": RunPhase.REFINEMENT}), "PHASE_MISMATCH", "run_phase"),
    "parent_after_the_change": (
        idea(
            packet=under_parent(),
            session={"phase": RunPhase.REFINEMENT, "identities": {PARENT_ID: identity(step=10)}},
        ),
        "PHASE_MISMATCH",
        "run_phase",
    ),
    "future_generation": (
        idea(packet={"trace__generation": 22}),
        "GENERATION_MISMATCH",
        "trace.generation",
    ),
    "future_of_an_older_round": (
        idea(
            packet={"trace__generation": 18, **under_parent()},
            session={"round": 2, "last_generations": {1: 17}},
        ),
        "GENERATION_MISMATCH",
        "trace.generation",
    ),
    "late_transfer": (transfer(trace__generation=20), "GENERATION_MISMATCH", "trace.generation"),
    "transfer_of_an_older_round": (
        transfer(session={"round": 2, "last_generations": {1: 21}}, **under_parent()),
        "GENERATION_MISMATCH",
        "trace.generation",
    ),
    "forbidden_type": (
        Scene(PacketType.TASK_IR, {"run_phase": "REFINEMENT"}),
        "PHASE_FORBIDS_TYPE",
        "packet_type",
    ),
    "no_lineage": (transfer(lineage=None), "LINEAGE_REQUIRED", "lineage"),
    "no_proof_of_claim": (
        Scene(PacketType.CLAIM, {"proof_bundle": None}),
        "PROOF_REQUIRED",
        "proof_bundle",
    ),
    "no_proof_of_eval": (Scene(PacketType.EVAL, {"proof_bundle": None}), "PROOF_REQUIRED", "proof_bundle"),
    "closed_window": (
        transfer(session={"generation": 10}, trace__generation=10),
        "TRANSFER_WINDOW_CLOSED",
        "trace.generation",
    ),
    "minimum_generation": (
        transfer(**with_policy(min_generation=22)),
        "TRANSFER_WINDOW_CLOSED",
        f"{POLICY}.min_generation",
    ),
    "mode": (
        transfer(**with_policy(mode="SELECTIVE_IMPORT"), lineage__transfer_mode="SELECTIVE_IMPORT"),
        "THROTTLE_MODE",
        f"{POLICY}.mode",
    ),
    "cross_use_case": (
        transfer(session={"generation": 11}, trace__generation=11, lineage__cross_use_case=True),
        "THROTTLE_CROSS_USE_CASE",
        "lineage.cross_use_case",
    ),
    "score_of_the_window": (
        transfer(session={"generation": 11}, trace__generation=11, payload__sender_score=0.72),
        "THROTTLE_SCORE",
        "payload.sender_score",
    ),
    "score_of_the_packet": (
        transfer(**with_policy(threshold_multiplier=1.6)),
        "THROTTLE_SCORE",
        "payload.sender_score",
    ),
    "score_that_was_verified": (
        transfer(session={"generation": 11, "verified_scores": {"linear": 0.5, "trees": 1.0}}, trace__generation=11),
        "THROTTLE_SCORE",
        "payload.sender_score",
    ),
    "top_k_missing": (
        transfer(payload__transfer_policy={"mode": "WINNER_TO_LOSERS"}),
        "THROTTLE_TOP_K",
        f"{POLICY}.top_k",
    ),
    "top_k_above": (transfer(**with_policy(top_k=3)), "THROTTLE_TOP_K", f"{POLICY}.top_k"),
    "top_k_used_up": (transfer(session={"accepted": {"trees": 2}}), "THROTTLE_TOP_K", f"{POLICY}.top_k"),
    "decayed": (
        transfer(facts={"decayed_protocols": frozenset({"proto-1"})}),
        "PROTOCOL_DECAYED",
        "payload.protocol_id",
    ),
    "descendant_of_decayed": (
        transfer(
            facts={"decayed_protocols": frozenset({"proto-0"})}, lineage__parent_protocol_ids=["proto-x", "proto-0"]
        ),
        "PROTOCOL_DECAYED",
        "lineage.parent_protocol_ids[1]",
    ),
    "unknown_target": (
        Scene(PacketType.RETRACTION, session={"identities": {}}),
        "NOT_RETRACTABLE",
        "payload.target_packet_id",
    ),
    "second_retraction": (
        Scene(
            PacketType.RETRACTION,
            session={"identities": {TARGET_ID: identity(sender="builder-1", retracted=True)}},
        ),
        "NOT_RETRACTABLE",
        "payload.target_packet_id",
    ),
    "unknown_task": (idea(session={"tasks": frozenset()}), "DRIFT_CHECK_FAILED", "trace.task_id"),
    "unknown_root": (
        idea(packet=under_parent(OTHER), session={"identities": {PARENT_ID: identity(root=OTHER)}}),
        "DRIFT_CHECK_FAILED",
        "trace.root_packet_id",
    ),
    "unknown_parent": (
        idea(packet=under_parent(), session={"identities": {}}),
        "DRIFT_CHECK_FAILED",
        "trace.root_packet_id",
    ),
    "root_of_another_family": (
        idea(packet=under_parent(), session={"identities": {PARENT_ID: identity(root=OTHER)}}),
        "DRIFT_CHECK_FAILED",
        "trace.root_packet_id",
    ),
    "empty_proof": (
        Scene(PacketType.CLAIM, {"proof_bundle": {}}),
        "DRIFT_CHECK_FAILED",
        "proof_bundle",
    ),
    "other_contract": (idea(facts={"is_contract_deployed": False}), "DRIFT_CHECK_FAILED", "protocol_version"),
    "same_content": (idea(session={"loop": LoopState(repeats=32)}), "LOOP_DETECTED", "payload"),
    "same_content_in_a_pause": (
        idea(session={"loop": LoopState(repeats=32), "is_paused": True}),
        "LOOP_DETECTED",
        "payload",
    ),
    "idle_turns": (
        idea(session={"loop": LoopState(chain=IdleChain(33, frozenset({"builder-1", "sentinel-1"})))}),
        "LOOP_DETECTED",
        "trace.parent_packet_id",
    ),
    "full_inbox": (idea(facts={"outstanding": {"sentinel-1": 100}}), "OVERLOADED", "recipients[0]"),
    "full_member": (
        idea(
            packet={"recipients": [{"agent_id": "_all"}], "routing__delivery_mode": "BROADCAST"},
            facts={"outstanding": {"sentinel-1": 100}},
        ),
        "OVERLOADED",
        "recipients[0]",
    ),
    "budget": (idea(session={"parts": {"packets": Part("", 0)}}), "BUDGET_EXHAUSTED", "trace.session_id"),
    "budget_of_held": (
        idea(session={"parts": {"packets": Part("", 0)}, "is_paused": True}),
        "BUDGET_EXHAUSTED",
        "trace.session_id",
    ),
    "budget_of_a_task": (
        idea(session={"parts": {"packets": Part("", 9), "tokens": Part("task-01", 0)}}),
        "BUDGET_EXHAUSTED",
        "trace.task_id",
    ),
    "reservation": (
        task_ir({"cut_from": {"packets": Part("task-00", 49)}, "parts": {"packets": Part("task-00", 60)}}),
        "BUDGET_EXHAUSTED",
        "payload.objects",
    ),
    "reservation_after_its_own_packet": (
        task_ir({"cut_from": {"packets": Part("", 50)}, "parts": {"packets": Part("", 50)}}),
        "BUDGET_EXHAUSTED",
        "payload.objects",
    ),
    "many_tasks": (task_ir({"task_budgets": 256}), "BUDGET_EXHAUSTED", "payload.ir_header.task_id"),
    "over_quota": (idea(facts={"quota_wait_ms": 40}), "QUOTA_EXCEEDED", "sender.agent_id"),
    "over_quota_in_a_pause": (
        idea(session={"is_paused": True, "held_count": 3}, facts={"quota_wait_ms": 40}),
        "QUOTA_EXCEEDED",
        "sender.agent_id",
    ),
    "over_quota_before_its_barrier": (
        transfer(session={"phase": RunPhase.CONVERGENCE}, facts={"quota_wait_ms": 40}, run_phase="CONVERGENCE"),
        "QUOTA_EXCEEDED",
        "sender.agent_id",
    ),
    "many_acks": (
        idea(packet={"routing__requires_ack": True}, session={"pending_acks": 256}),
        "OVERLOADED",
        "routing.requires_ack",
    ),
    "many_bytes_of_all": (idea(session={"open_bytes": 64 << 20}), "OVERLOADED", "trace.session_id"),
    "its_own_many_bytes": (
        idea(session={"open_bytes": 32 << 20, "own_open_bytes": 32 << 20}),
        "OVERLOADED",
        "trace.session_id",
    ),
    "many_bytes_in_a_pause": (
        idea(session={"is_paused": True, "held_count": 3, "open_bytes": 64 << 20}),
        "OVERLOADED",
        "trace.session_id",
    ),
    "a_full_session": (idea(session={"items": 300_000}), "BUDGET_EXHAUSTED", "trace.session_id"),
    "a_full_session_in_a_pause": (
        idea(session={"is_paused": True, "held_count": 3, "items": 300_000}),
        "BUDGET_EXHAUSTED",
        "trace.session_id",
    ),
    "a_session_full_of_answers": (signal({"items": 600_000}), "BUDGET_EXHAUSTED", "trace.session_id"),
    "many_recipients": (
        idea(packet={"recipients": [{"agent_id": f"a-{number}"} for number in range(1001)]}),
        "TOO_LARGE",
        "recipients",
    ),
    "many_references": (
        idea(packet={"proof_bundle": {"evidence_refs": [f"e-{number}" for number in range(1001)]}}),
        "TOO_LARGE",
        "proof_bundle.evidence_refs",
    ),
    "many_parents": (
        transfer(lineage={"protocol_id": "proto-1", "parent_protocol_ids": [f"p-{number}" for number in range(65)]}),
        "TOO_LARGE",
        "lineage.parent_protocol_ids",
    ),
    "many_ancestors": (
        idea(packet={"lineage": {"protocol_id": "p", "ancestor_swarms": [f"s-{number}" for number in range(1001)]}}),
        "TOO_LARGE",
        "lineage.ancestor_swarms",
    ),
}
PARSED = frozenset({"TOO_LARGE", "TOO_DEEP", "MALFORMED", "SCHEMA_INVALID"})


@pytest.mark.parametrize(("scene", "code", "path"), CASES.values(), ids=CASES.keys())
def test_refusal(scene: Scene, code: str, path: str, contract: Contract) -> None:
    verdict = scene.judge(contract)

    assert verdict.kind is VerdictKind.REFUSED
    assert verdict.refusal is not None
    assert (verdict.refusal.code, verdict.refusal.path) == (code, path)
    assert verdict.refusal.reason == f"{code} at {path}: {verdict.refusal.message}"
    assert (verdict.refusal.retry_after_ms is not None) == (code in contract.refusals.deferred)


@pytest.mark.parametrize(("scene", "code", "path"), CASES.values(), ids=CASES.keys())
def test_refusal_again_from_its_record(scene: Scene, code: str, path: str, contract: Contract) -> None:
    verdict = scene.judge(contract)
    record = json.loads(json.dumps(verdict.facts))

    assert judge_recorded(scene.received, record, contract) == verdict


def test_every_code_of_the_gate_is_reached(contract: Contract) -> None:
    reached = {code for _, code, _ in CASES.values()}

    assert reached - PARSED == set(contract.refusals.order) - PARSED


def test_rules_stand_in_the_refusal_order(contract: Contract) -> None:
    """The order of apc/1.1 is that of apc/1.0 with two codes more."""
    order = list(task_contract().refusals.order)
    assert [code for code in order if code not in ("UNKNOWN_CONTRACT", "CONTENT_INVALID")] == list(
        contract.refusals.order
    )
    places = [order.index(rule.code) for rule in RULES]

    assert places == sorted(places)
    assert set(order) - {rule.code for rule in RULES} - PARSED == set()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("copies", "unknown_sender"),
        ("expired_by_time", "other_role"),
        ("other_role", "reserved_task"),
        ("forbidden_type", "unknown_task"),
    ],
)
def test_the_first_code_wins(first: str, second: str, contract: Contract) -> None:
    one, other = CASES[first][0], CASES[second][0]
    both = Scene(
        one.packet_type,
        {**other.packet, **one.packet},
        session={**(other.session or {}), **(one.session or {})},
        facts={**other.facts, **one.facts},
        agents={**other.agents, **one.agents},
    )
    refusal = both.judge(contract).refusal

    assert refusal is not None
    assert refusal.code == CASES[first][1]
