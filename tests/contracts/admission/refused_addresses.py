"""Packets refused for who sends them, when, in which session, and to whom."""

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from apc_contracts import PacketType, SignatureState

from ..scene import CREATED, PACKET_ID, PARENT_ID, TARGET_ID, Scene, identity, under_parent
from .refused_scenes import (
    BUILDER,
    OPERATOR,
    REPLY,
    SENTINEL,
    START,
    VALIDATOR,
    Expected,
    eval_of_artifact,
    idea,
    outside,
    signal,
    transfer,
)

ADDRESS_CASES: dict[str, Expected] = {
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
}
"""Name -> scene, code and path."""
