"""The packaged contract file is whole; a file with a hole is refused with the place of the hole."""

import json
from collections.abc import Callable
from copy import deepcopy
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from apc_contracts import ContractInvalid, PacketType
from apc_contracts.admission.rules.drift import DRIFT_FACTS
from apc_contracts.contract.contract import Contract, check_guards, load_contract
from apc_contracts.contract.coordinators import TERMS, Coordinator
from apc_contracts.contract.file import KNOWN_FACTS, contract_schema
from apc_contracts.limits import DEFAULT_LIMITS

DATA = files("apc_contracts") / "data"
PACKAGED = (DATA / "apc-1.0.json").read_bytes()
Change = Callable[[dict[str, Any]], object]
TASK_FACTS = TERMS[Coordinator.TASK].facts


def edges(document: dict[str, Any], machine: str = "inter_agent_coordination") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document["machines"][machine]["edges"]
    return found


def session_edge(**edge: Any) -> Change:
    return lambda document: edges(document).append(edge)


def check(number: int, **changes: Any) -> Change:
    return lambda document: document["drift_checks"][number].update(changes)


def section(name: str, **changes: Any) -> Change:
    return lambda document: document[name].update(changes)


def without(*path: str) -> Change:
    def remove(document: dict[str, Any]) -> None:
        target = document
        for part in path[:-1]:
            target = target[part]
        del target[path[-1]]

    return remove


HOLES: dict[str, tuple[Change, str]] = {
    "no_machine": (without("machines", "packet_lifecycle"), "machines"),
    "unknown_key": (lambda document: document.update(extra=1), "extra"),
    "missing_section": (without("limits"), "limits"),
    "wrong_type": (section("limits", nodes="many"), "limits.nodes"),
    "not_finite": (section("limits", nodes=0), "limits.nodes"),
    "unknown_phase": (
        lambda document: document["phases"].update(DREAMING={"packet_types": []}),
        "phases.DREAMING.[key]",
    ),
    "missing_phase": (without("phases", "RESEARCH"), "phases"),
    "unknown_type": (
        lambda document: document["phases"]["RESEARCH"]["packet_types"].append("GOSSIP"),
        "phases.RESEARCH.packet_types[3]",
    ),
    "type_twice": (
        lambda document: document["phases"]["RESEARCH"]["packet_types"].append("IDEA"),
        "phases.RESEARCH.packet_types[3]",
    ),
    "guard_for_a_forbidden_transfer": (
        lambda document: document["phases"]["PROMOTION"]["packet_types"].remove("TRANSFER"),
        "phases.PROMOTION.transfer",
    ),
    "initial_state": (
        lambda document: document["machines"]["packet_lifecycle"].update(initial="BORN"),
        "machines.packet_lifecycle.initial",
    ),
    "terminal_state": (
        lambda document: document["machines"]["packet_lifecycle"]["terminal"].append("LOST"),
        "machines.packet_lifecycle.terminal",
    ),
    "unknown_source": (
        session_edge(**{"from": ["NOWHERE"], "event": "jump", "to": "CLOSED"}),
        "machines.inter_agent_coordination.edges[12].from",
    ),
    "unknown_target": (
        session_edge(**{"from": ["EXECUTION"], "event": "jump", "to": "NOWHERE"}),
        "machines.inter_agent_coordination.edges[12].to",
    ),
    "leaves_a_terminal_state": (
        session_edge(**{"from": ["CLOSED"], "event": "reopen", "to": "SESSION_OPEN"}),
        "machines.inter_agent_coordination.edges[12].from",
    ),
    "two_edges": (
        session_edge(**{"from": ["PROMOTION"], "event": "commons_commit_complete", "to": "HALTED"}),
        "machines.inter_agent_coordination.edges[12]",
    ),
    "edge_beside_any": (
        session_edge(**{"from": ["EXECUTION"], "event": "stop_signal_or_budget_exhausted", "to": "CLOSED"}),
        "machines.inter_agent_coordination.edges[12]",
    ),
    "guard_and_gate": (
        lambda document: edges(document)[8].update(guard="outcome > 0.5"),
        "machines.inter_agent_coordination.edges[8]",
    ),
    "unreachable_state": (
        lambda document: document["machines"]["packet_lifecycle"]["states"].append("LIMBO"),
        "machines.packet_lifecycle.states[16]",
    ),
    "cut_off_state": (
        lambda document: edges(document).pop(7),
        "machines.inter_agent_coordination.states[7]",
    ),
    "state_twice": (
        lambda document: document["machines"]["packet_lifecycle"]["states"].append("DRAFT"),
        "machines.packet_lifecycle.states[16]",
    ),
    "phase_of_nowhere": (section("phase_of_state", NOWHERE="RESEARCH"), "phase_of_state"),
    "state_without_phase": (without("phase_of_state", "EXECUTION"), "phase_of_state"),
    "event_of_nobody": (section("raised_by", IDEA=["enlightenment"]), "raised_by.IDEA"),
    "unknown_fact_declared": (lambda document: document["facts"][0].update(name="mood"), "facts[0]"),
    "fact_of_another_type": (lambda document: document["facts"][0].update(type="bool"), "facts[0].type"),
    "fact_of_another_scope": (lambda document: document["facts"][0].update(scopes=["drift"]), "facts[0].scopes"),
    "fact_twice": (lambda document: document["facts"].append(document["facts"][0]), "facts[31]"),
    "guard_names_unknown_fact": (
        lambda document: edges(document)[2].update(guard="generation >= 11.0 && moon"),
        "machines.inter_agent_coordination.edges[2].guard",
    ),
    "guard_names_fact_of_elsewhere": (check(0, guard="generation > 1.0"), "drift_checks[0].guard"),
    "guard_does_not_compile": (
        lambda document: document["promotion_gate"][1].update(guard="stability >="),
        "promotion_gate[1].guard",
    ),
    "guard_mixes_numbers": (
        lambda document: document["phases"]["REFINEMENT"]["transfer"].update(guard="sender_score > receiver_score * 2"),
        "phases.REFINEMENT.transfer.guard",
    ),
    "guard_is_no_predicate": (check(6, guard="protocol_share"), "drift_checks[6].guard"),
    "guard_calls_unknown_function": (check(6, guard="fold(protocol_share)"), "drift_checks[6].guard"),
    "guard_nests_macros": (
        check(6, guard="[1.0].all(a, [2.0].exists(b, a < b && protocol_share < 1.0))"),
        "drift_checks[6].guard",
    ),
    "check_twice": (check(1, name="phase_appropriate"), "drift_checks[1]"),
    "metric_twice": (lambda document: document["promotion_gate"][1].update(metric="rtf"), "promotion_gate[1]"),
    "gap_between_windows": (
        lambda document: document["transfer_windows"][1].update(first_generation=12),
        "transfer_windows[1].first_generation",
    ),
    "window_backwards": (
        lambda document: document["transfer_windows"][1].update(last_generation=5),
        "transfer_windows[1].last_generation",
    ),
    "last_window_ends": (
        lambda document: document["transfer_windows"][2].update(last_generation=99),
        "transfer_windows",
    ),
    "window_after_the_last": (
        lambda document: document["transfer_windows"][1].pop("last_generation"),
        "transfer_windows[2]",
    ),
    "other_protocol": (lambda document: document.update(protocol_version="apc/2.0"), "protocol_version"),
    "control_type_missing": (lambda document: document["control_types"].pop(), "control_types"),
    "refused_before_asked": (
        lambda document: document["loops"]["idle_turns"].update(refuse_after=3),
        "loops.idle_turns.refuse_after",
    ),
    "too_few_contents": (
        lambda document: document["loops"].update(contents_kept=5),
        "loops.contents_kept",
    ),
    "other_refusal_order": (
        lambda document: document["refusals"]["order"].reverse(),
        "refusals.order",
    ),
    "unknown_deferred": (section("refusals", deferred=["LAZY"]), "refusals.deferred"),
    "unknown_last": (section("refusals", last_without_id="LAZY"), "refusals.last_without_id"),
}


def changed(change: Change) -> bytes:
    document = json.loads(PACKAGED)
    change(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize(("change", "place"), HOLES.values(), ids=HOLES.keys())
def test_hole(change: Change, place: str, tmp_path: Path, exercised: Callable[..., None]) -> None:
    """Matrix row 44."""
    exercised("a contract with a hole")
    path = tmp_path / "contract.json"
    path.write_bytes(changed(change))

    with pytest.raises(ContractInvalid) as caught:
        load_contract(path)
    assert caught.value.place == place


@pytest.mark.parametrize(
    ("body", "place"),
    [(b"", "$"), (b"[]", "$"), (b"{\xff}", "$"), (b'{"name": 1, "name": 2}', "name"), (b"[" * 100_000, "$")],
)
def test_no_contract_at_all(body: bytes, place: str, tmp_path: Path) -> None:
    path = tmp_path / "contract.json"
    path.write_bytes(body)

    with pytest.raises(ContractInvalid) as caught:
        load_contract(path)
    assert caught.value.place == place


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ContractInvalid, match="cannot read"):
        load_contract(tmp_path / "absent.json")


def test_packaged_guards_are_proved(contract: Contract) -> None:
    check_guards(contract)


def test_a_deployments_own_file(tmp_path: Path) -> None:
    path = tmp_path / "contract.json"
    path.write_bytes(changed(check(7, mode="off")))

    own = load_contract(path)
    assert own.hash == sha256(path.read_bytes()).digest() != load_contract().hash
    assert [rule.name for rule in own.drift.warned.rules] == ["supports_competition"]


def test_no_drift_checks_at_all(tmp_path: Path) -> None:
    path = tmp_path / "contract.json"
    path.write_bytes(changed(lambda document: document.update(drift_checks=[])))

    assert load_contract(path).drift.enforced.whole.holds({})


def test_packaged_is_loaded_once_and_hashed(contract: Contract) -> None:
    assert contract is load_contract()
    assert contract.hash == sha256(PACKAGED).digest()
    with pytest.raises(ContractInvalid, match="there is no machine 'dance'"):
        contract.machine("dance")


def test_schema_is_exported_and_holds() -> None:
    exported = json.loads((DATA / "contract.schema.json").read_text())

    assert exported == contract_schema()
    jsonschema.Draft202012Validator.check_schema(exported)
    jsonschema.validate(json.loads(PACKAGED), exported)
    broken = deepcopy(json.loads(PACKAGED))
    broken["limits"]["nodes"] = -1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, exported)


def test_facts_are_the_computed_ones(contract: Contract) -> None:
    declared = {fact.name: (fact.type, frozenset(fact.scopes)) for fact in contract.file.facts}

    assert declared == {name: known for name, known in KNOWN_FACTS.items() if name not in TASK_FACTS}
    assert {name for name, (_, scopes) in declared.items() if "drift" in scopes} == set(DRIFT_FACTS)


def test_limits_are_those_of_the_parser(contract: Contract) -> None:
    limits = contract.limits

    assert limits.packet_bytes == DEFAULT_LIMITS.size_bytes == 256 * 1024
    assert limits.nesting_levels == DEFAULT_LIMITS.levels == 32
    assert limits.nodes == DEFAULT_LIMITS.nodes == 20_000


def test_numbers_of_the_protocol(contract: Contract) -> None:
    selection, effectiveness = contract.selection, contract.effectiveness

    assert (selection.confidence_weight, selection.cross_use_case_bonus) == (0.25, 0.05)
    assert (effectiveness.acceptance_weight, effectiveness.outcome_weight, effectiveness.drift_weight) == (
        0.5,
        0.35,
        0.15,
    )
    assert (effectiveness.minimum_effectiveness, effectiveness.maximum_drift_risk) == (0.35, 0.75)
    assert effectiveness.minimum_transfers == 5
    assert (contract.session.max_rounds, contract.session.veto_window_ms) == (2, 2000)
    assert (contract.limits.clock_skew_ms, contract.limits.held_packets) == (300_000, 1000)
    assert [contract.window(generation).name for generation in (0, 10, 11, 20, 21, 10**6)] == [
        "independent_discovery",
        "independent_discovery",
        "selective",
        "selective",
        "controlled_convergence",
        "controlled_convergence",
    ]
    assert {check.name: check.mode for check in contract.file.drift_checks} == {
        "phase_appropriate": "enforce",
        "within_current_scope": "enforce",
        "maps_to_spec_reference": "enforce",
        "ci_verifiable": "enforce",
        "aligns_with_core_architecture": "enforce",
        "maps_to_concrete_module": "enforce",
        "supports_competition": "warn",
        "strengthens_language_evolution": "warn",
    }


def test_every_type_raises_known_events(contract: Contract) -> None:
    events = {edge.event for edge in contract.machine("inter_agent_coordination").edges}
    raised = {event for kind in (*PacketType, "receipts") for event in contract.raised_by(kind)}

    assert raised == events
    assert contract.raised_by("gossip") == ()
