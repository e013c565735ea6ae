"""Scenes of packets that the gate refuses, made of few words."""

from dataclasses import replace
from typing import Any
from uuid import UUID

from apc_contracts import PacketType, Right, RunPhase, reply_id

from ..scene import PARENT_ID, SPEC, Scene, identity, registration, under_parent

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
