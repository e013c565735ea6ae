"""A verdict is a function of (bytes, facts, contract): whatever the gate saw, the record gives it again."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apc_contracts import ORCHESTRATOR, PacketType, Registration, Right, RunPhase, SignatureState, reply_id
from apc_contracts.admission.admit import admit
from apc_contracts.admission.recorded import judge_recorded
from apc_contracts.contract.contract import load_contract
from apc_contracts.judging.session_view import NO_LOOP, IdleChain, LoopState, Part

from ..scene import (
    CREATED,
    PACKET_ID,
    PARENT_ID,
    ROOT_ID,
    TARGET_ID,
    Scene,
    identity,
    registration,
    under_parent,
)

PHASES = st.sampled_from(RunPhase)
RIGHTS = st.frozensets(st.sampled_from(Right))
SWARMS = st.sampled_from(["linear", "trees"])
VOICES = frozenset({"builder-1", "sentinel-1"})
LOOPS = [NO_LOOP] * 12 + [LoopState(3, IdleChain(2, VOICES)), LoopState(32), LoopState(0, IdleChain(33, VOICES))]
MODES = {
    "DIRECT": [{"agent_id": "sentinel-1"}],
    "MULTICAST": [{"agent_id": "builder-1"}, {"agent_id": "sentinel-1"}],
    "BROADCAST": [{"agent_id": "_all", "swarm_id": "trees"}],
    "SUBSTRATE": [{"agent_id": "_substrate"}],
}


def rarely(odd: Any, usual: Any) -> st.SearchStrategy[Any]:
    """Mostly the usual value, so that judgements get beyond the first rules."""
    return st.sampled_from([usual] * 9 + [odd])


@st.composite
def packets(draw: st.DrawFn, kind: PacketType) -> dict[str, Any]:
    mode = draw(st.sampled_from(sorted(MODES)))
    changes: dict[str, Any] = {
        "run_phase": draw(PHASES).value,
        "trace__generation": draw(st.sampled_from([9, 11, 21, 21, 21, 22])),
        "routing__delivery_mode": mode,
        "recipients": MODES[mode],
        "symbolic_keys": draw(st.sampled_from([["stale"], ["fresh"]])),
        "sender__role": draw(rarely("judge", "builder")),
    }
    if draw(st.booleans()):
        changes |= under_parent(draw(rarely(TARGET_ID, ROOT_ID)))
    if kind is PacketType.TRANSFER:
        changes["payload__sender_score"] = draw(st.sampled_from([0.5, 0.72, 0.9]))
        changes["payload__from_swarm"] = draw(rarely("trees", "linear"))
    if kind is PacketType.SIGNAL:
        changes["payload__signal"] = draw(st.sampled_from(["QUERY", "STOP", "VETO", "SYNC"]))
    if kind is PacketType.DECISION:
        changes["payload__commitment_level"] = draw(st.sampled_from(["APPROVED", "DONE"]))
    return changes


@st.composite
def sessions(draw: st.DrawFn, phase: RunPhase) -> dict[str, Any]:
    parent = identity(
        packet_type=draw(st.sampled_from([PacketType.IDEA, PacketType.ARBITRATION, PacketType.ARTIFACT])),
        run_phase=draw(PHASES),
        step=draw(st.sampled_from([1, 20])),
        round=draw(rarely(1, 2)),
        swarm_id=draw(SWARMS),
        root=draw(rarely(TARGET_ID, ROOT_ID)),
    )
    known: dict[UUID, Any] = {PARENT_ID: parent}
    if draw(st.booleans()):
        known[TARGET_ID] = identity(sender=draw(rarely("sentinel-1", "builder-1")), retracted=draw(rarely(True, False)))
    if draw(rarely(True, False)):
        known[UUID(PACKET_ID)] = identity(cause=draw(st.sampled_from([None, PARENT_ID])), sender="builder-1")
    return {
        "phase": draw(rarely(draw(PHASES), phase)),
        "round": 2,
        "last_generations": {1: 12},
        "identities": known,
        "is_terminal": draw(rarely(True, False)),
        "is_paused": draw(rarely(True, False)),
        "held_count": draw(st.sampled_from([0, 1000])),
        "parts": draw(rarely({"packets": Part("", 0)}, {})),
        "members": draw(rarely(frozenset(), frozenset({"builder-1"}))),
        "tasks": draw(rarely(frozenset(), frozenset({"task-01"}))),
        "roots": draw(rarely(frozenset(), frozenset({ROOT_ID}))),
        "verified_scores": draw(st.sampled_from([{}, {"linear": 0.7, "trees": 1.0}, {"trees": 0.1}])),
        "accepted": {"trees": draw(st.integers(0, 2))},
        "top_k": draw(st.sampled_from([{}, {"trees": 1}])),
        "loop": draw(st.sampled_from(LOOPS)),
        "protocols": draw(st.sampled_from([{}, {"proto-1": frozenset({"knn", "bayes"})}])),
    }


@st.composite
def given_facts(draw: st.DrawFn) -> dict[str, Any]:
    cause = draw(st.sampled_from([None, PARENT_ID]))
    return {
        "now": CREATED + draw(rarely(timedelta(hours=1), timedelta(seconds=1))),
        "user_id": draw(rarely("agent.other", "agent.builder-1")),
        "has_copy_headers": draw(rarely(True, False)),
        "hashes_to_shard": draw(rarely(False, True)),
        "signature": draw(rarely(SignatureState.INVALID, SignatureState.VALID)),
        "cause": cause,
        "ordinal": draw(rarely(1, 0)),
        "is_cause_delivered": draw(rarely(False, True)),
        "is_opening": draw(rarely(True, False)),
        "is_contract_deployed": draw(rarely(False, True)),
        "decayed_protocols": draw(rarely(frozenset({"proto-1"}), frozenset())),
        "outstanding": draw(rarely({"sentinel-1": 500}, {"sentinel-1": 1})),
        "own_outstanding": draw(st.sampled_from([None, {}, {"sentinel-1": 500}])),
        "quota_wait_ms": draw(rarely(40, 0)),
    }


@st.composite
def registries(draw: st.DrawFn) -> dict[str, Registration | None]:
    builder = registration("builder-1", "builder", draw(rarely("trees", "linear")), *draw(RIGHTS))
    sentinel = registration("sentinel-1", "sentinel", "trees")
    deaf = replace(sentinel, handles=frozenset({PacketType.EVAL}))
    return {
        "builder-1": draw(rarely(None, replace(builder, is_revoked=draw(rarely(True, False))))),
        "sentinel-1": draw(st.sampled_from([sentinel] * 9 + [None, deaf, replace(sentinel, is_revoked=True)])),
    }


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    kind = draw(st.sampled_from(PacketType))
    packet = draw(packets(kind))
    if draw(rarely(True, False)):
        packet["packet_id"] = str(reply_id(PARENT_ID, "builder-1", 0))
        packet.setdefault("trace__root_packet_id", packet["packet_id"])
    session = draw(st.sampled_from([True] * 9 + [False]))
    return Scene(
        kind,
        packet,
        draw(sessions(RunPhase(packet["run_phase"]))) if session else None,
        draw(given_facts()),
        draw(registries()),
    )


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(scenes(), st.booleans())
def test_the_record_gives_the_verdict_again(scene: Scene, is_offline: bool) -> None:
    contract = load_contract()
    packet, view, facts = scene.received, scene.view, scene.given
    if is_offline:
        view, facts = None, msgspec.structs.replace(facts, registry=None)
    verdict = admit(packet.packet, view, facts, contract)
    record = json.loads(json.dumps(verdict.facts))

    again = judge_recorded(packet, record, contract)
    assert (again.kind, again.refusal, again.warnings) == (verdict.kind, verdict.refusal, verdict.warnings)
    assert again.facts == record


@settings(max_examples=100, deadline=None)
@given(scenes())
def test_judging_changes_nothing(scene: Scene) -> None:
    contract = load_contract()
    packet, view, facts = scene.received.packet, scene.view, scene.given

    assert admit(packet, view, facts, contract) == admit(packet, view, facts, contract)
    assert ORCHESTRATOR not in (scene.agents or {})
