"""Packets refused for phase, proof, policy, history, budgets and size."""

from apc_contracts import PacketType, RunPhase
from apc_contracts.judging.session_view import IdleChain, LoopState, Part

from ..scene import PARENT_ID, TARGET_ID, Scene, identity, under_parent
from .refused_scenes import OTHER, POLICY, Expected, idea, signal, task_ir, transfer, with_policy

CONTENT_CASES: dict[str, Expected] = {
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
"""Name -> scene, code and path."""
