"""The eight anti-drift checks in each mode: refused, accepted with a recorded warning, accepted."""

import json
from functools import cache
from typing import Any
from uuid import UUID

import orjson
import pytest

from apc_contracts import PacketType, VerdictKind
from apc_contracts.admission.case import Case
from apc_contracts.admission.recorded import judge_recorded
from apc_contracts.admission.rules.drift import keeps_to_the_course, warnings_of
from apc_contracts.contract.contract import Contract, contract_from_bytes, load_contract

from ..scene import PARENT_ID, TARGET_ID, Scene, identity, under_parent

OTHER = UUID("0190a5f2-9999-7222-8333-444455556666")
HELD_WIDELY = {"protocols": {"proto-1": frozenset({"knn", "bayes"})}}
FAILING: dict[str, list[Scene]] = {
    "within_current_scope": [
        Scene(session={"tasks": frozenset()}),
        Scene(packet={"trace__task_id": "task-99"}),
    ],
    "maps_to_spec_reference": [
        Scene(packet=under_parent(OTHER), session={"identities": {PARENT_ID: identity(root=OTHER)}}),
        Scene(packet=under_parent(), session={"identities": {}}),
        Scene(packet=under_parent(), session={"identities": {PARENT_ID: identity(root=TARGET_ID)}}),
    ],
    "ci_verifiable": [
        Scene(PacketType.CLAIM, {"proof_bundle": {}}),
        Scene(PacketType.EVAL, {"proof_bundle": {"evidence_refs": [], "falsifiers": []}}),
    ],
    "aligns_with_core_architecture": [Scene(facts={"is_contract_deployed": False})],
    "supports_competition": [Scene(PacketType.TRANSFER, session=HELD_WIDELY)],
    "strengthens_language_evolution": [
        Scene(packet={"symbolic_keys": ["stale"]}),
        Scene(packet={"symbolic_keys": []}),
        Scene(
            PacketType.TRANSFER,
            {"symbolic_keys": ["stale"], "lineage__parent_protocol_ids": ["proto-0"]},
            session={"protocols": {"proto-0": frozenset()}},
        ),
    ],
}
"""check -> what fails it alone."""
SHADOWED: dict[str, tuple[Scene, str]] = {
    "phase_appropriate": (Scene(PacketType.IDEA, {"run_phase": "VALIDATION"}), "PHASE_FORBIDS_TYPE"),
    "maps_to_concrete_module": (Scene(agents={"sentinel-1": None}), "UNROUTABLE"),
}
"""check -> what fails it, and the code of the earlier rule that refuses that in any mode."""
CASES = [pytest.param(name, scene, id=f"{name}-{n}") for name, all_ in FAILING.items() for n, scene in enumerate(all_)]


@cache
def in_mode(check: str, mode: str) -> Contract:
    """Return the packaged contract with one check in this mode and the others off."""
    document = load_contract().file.model_dump(mode="json", by_alias=True, exclude_none=True)
    for declared in document["drift_checks"]:
        declared["mode"] = mode if declared["name"] == check else "off"
    return contract_from_bytes(orjson.dumps(document))


def test_every_check_has_its_cases(contract: Contract) -> None:
    assert FAILING.keys() | SHADOWED.keys() == {check.name for check in contract.file.drift_checks}


def test_the_packaged_modes(contract: Contract) -> None:
    warned = {check.name for check in contract.file.drift_checks if check.mode == "warn"}

    assert warned == {"supports_competition", "strengthens_language_evolution"}
    assert all(check.mode != "off" for check in contract.file.drift_checks)


@pytest.mark.parametrize(("check", "scene"), CASES)
def test_enforced(check: str, scene: Scene) -> None:
    verdict = scene.judge(in_mode(check, "enforce"))

    assert verdict.refusal is not None
    assert (verdict.refusal.code, verdict.refusal.rule) == ("DRIFT_CHECK_FAILED", check)
    assert verdict.warnings == ()


@pytest.mark.parametrize(("check", "scene"), CASES)
def test_warned(check: str, scene: Scene) -> None:
    contract = in_mode(check, "warn")
    verdict = scene.judge(contract)

    assert verdict.kind is VerdictKind.ACCEPTED
    assert [(warning.code, warning.rule) for warning in verdict.warnings] == [("DRIFT_CHECK_FAILED", check)]
    record = json.loads(json.dumps(verdict.facts))
    assert record["warnings"] == [check]
    again = judge_recorded(scene.received, record, contract)
    assert (again.kind, again.warnings, again.facts) == (verdict.kind, verdict.warnings, record)


@pytest.mark.parametrize(("check", "scene"), CASES)
def test_off(check: str, scene: Scene) -> None:
    verdict = scene.judge(in_mode(check, "off"))

    assert (verdict.kind, verdict.warnings) == (VerdictKind.ACCEPTED, ())
    assert "warnings" not in verdict.facts


@pytest.mark.parametrize(("check", "scene", "code"), [(name, *given) for name, given in SHADOWED.items()])
def test_what_an_earlier_rule_refuses_in_any_mode(check: str, scene: Scene, code: str) -> None:
    found: dict[str, Any] = {}
    for mode in ("enforce", "warn", "off"):
        contract = in_mode(check, mode)
        refusal = scene.judge(contract).refusal
        assert refusal is not None and refusal.code == code
        case = Case(scene.received.packet, scene.view, scene.given, contract)
        enforced = keeps_to_the_course(case)
        found[mode] = enforced.rule if enforced else None, [warning.rule for warning in warnings_of(case)]

    assert found == {"enforce": (check, []), "warn": (None, [check]), "off": (None, [])}


@pytest.mark.parametrize(("check", "scene"), CASES)
def test_control_types_and_the_orchestrator_are_not_looked_at(check: str, scene: Scene) -> None:
    contract = in_mode(check, "enforce")
    session = scene.session
    signal = Scene(PacketType.SIGNAL, {}, session=session, facts=scene.facts)

    assert signal.judge(contract).refusal is None
    assert signal.judge(in_mode(check, "warn")).warnings == ()


@pytest.mark.parametrize(
    ("holders", "is_refused"),
    [(set(), False), ({"knn"}, False), ({"knn", "linear"}, False), ({"knn", "bayes"}, True)],
)
def test_a_share_of_three_quarters_is_no_monopoly(holders: set[str], is_refused: bool) -> None:
    scene = Scene(PacketType.TRANSFER, session={"protocols": {"proto-1": frozenset(holders)}})

    assert (scene.judge(in_mode("supports_competition", "enforce")).refusal is not None) is is_refused
