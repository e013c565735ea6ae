"""Every refusal code of the gate, with its path; the order; and the same verdict again from its record."""

import json

import pytest

from apc_contracts import VerdictKind
from apc_contracts.admission.recorded import judge_recorded
from apc_contracts.admission.rules.order import RULES
from apc_contracts.contract.contract import Contract, task_contract
from apc_contracts.contract.file import TEAM_CODES

from ..scene import Scene
from ..session.room import contract_of
from .refused_addresses import ADDRESS_CASES
from .refused_contents import CONTENT_CASES

CASES = ADDRESS_CASES | CONTENT_CASES
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
    team = list(contract_of().refusals.order)
    assert [code for code in team if code not in TEAM_CODES] == order, "a team's rules have two codes more"
    order = team
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
