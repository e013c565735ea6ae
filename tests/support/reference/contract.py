"""Tables of the packaged contract files."""

import json
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from tests.support.reference.markdown import code, table

import apc_contracts
from apc_contracts.contract.contract import load_contract
from apc_contracts.contract.file import REFUSAL_ORDER_1_1, with_team_codes

SESSIONS = "inter_agent_coordination"


@cache
def _contract(name: str = "apc-1.0") -> dict[str, Any]:
    data = Path(apc_contracts.__file__).parent / f"data/{name}.json"
    loaded: dict[str, Any] = json.loads(data.read_text(encoding="utf-8"))
    return loaded


def phases() -> str:
    """Return the phase table."""
    rows = [
        (phase, " ".join(rules["packet_types"]), _transfer(rules.get("transfer")))
        for phase, rules in _contract()["phases"].items()
    ]
    return table(("run_phase", "types allowed", "TRANSFER"), rows)


def _transfer(rule: Mapping[str, str] | None) -> str:
    return f"if {code(rule['guard'])}, else {rule['code']}" if rule else "no"


def windows() -> str:
    """Return the transfer windows."""
    rows = []
    for window in _contract()["transfer_windows"]:
        last = window.get("last_generation")
        generations = (
            f"{window['first_generation']} to {last}" if last is not None else f"from {window['first_generation']}"
        )
        rules = ["open" if window["is_open"] else "closed"]
        if "score_multiplier" in window:
            rules.append(f"`sender_score > receiver_score * {window['score_multiplier']}`")
        if "top_k_limit" in window:
            rules.append(f"top_k required and ≤ {window['top_k_limit']}")
        rules.append("cross-use-case allowed" if window["allows_cross_use_case"] else "no cross-use-case")
        rows.append((generations, window["name"], "; ".join(rules)))
    return table(("generation", "window", "rules"), rows)


def promotion() -> str:
    """Return the conditions of the promotion gate."""
    return table(
        ("metric", "condition"), [(one["metric"], code(one["guard"])) for one in _contract()["promotion_gate"]]
    )


def drift() -> str:
    """Return the anti-drift checks."""
    rows = [(one["name"], one["mode"], code(one["guard"]), code(one["path"])) for one in _contract()["drift_checks"]]
    return table(("check", "mode", "holds when", "path"), rows)


def facts() -> str:
    """Return the facts that guards may read, those of both packaged contracts."""
    rows: dict[str, tuple[str, ...]] = {}
    for name in ("apc-1.0", "task-1.1"):
        for one in _contract(name)["facts"]:
            of = f"{rows[one['name']][-1]}, task" if one["name"] in rows else name.removesuffix("-1.1")
            rows[one["name"]] = (code(one["name"]), one["type"], ", ".join(one["scopes"]), one["meaning"], of)
    return table(("fact", "type", "guards", "meaning", "declared by"), rows.values())


def machine(name: str) -> str:
    """Return the edges of a state machine."""
    edges = _contract()["machines"][name]["edges"]
    return table(("from", "event", "guard", "to"), [(_sources(e), e["event"], _guard(e), e["to"]) for e in edges])


def _sources(edge: Mapping[str, Any]) -> str:
    if edge["from"] != "*":
        return ", ".join(edge["from"])
    return "any state, terminal ones too" if edge.get("from_terminal") else "any non-terminal state"


def _guard(edge: Mapping[str, Any]) -> str:
    return f"{edge['gate']} gate (section 7)" if "gate" in edge else code(edge.get("guard", ""))


def phase_of_state() -> str:
    """Return the run_phase of each session state."""
    return table(("state", "run_phase"), _contract()["phase_of_state"].items())


def lifecycle() -> str:
    """Return what each state of a session allows, and what leaves it."""
    machine_of_sessions, phases_of = _contract()["machines"][SESSIONS], _contract()["phase_of_state"]
    rows = []
    for state in machine_of_sessions["states"]:
        phase = phases_of.get(state, "")
        allowed = "" if state in machine_of_sessions["terminal"] else _contract()["phases"][phase]["packet_types"]
        leaving = [edge for edge in machine_of_sessions["edges"] if state in edge["from"] and edge["from"] != "*"]
        ways = [f"{edge['event']} → {edge['to']}, by {_raised_by(edge['event'])}" for edge in leaving]
        rows.append((state, phase, ", ".join(allowed), "; ".join(ways)))
    return table(("state", "run_phase", "types allowed, beside control types", "left by, raised by"), rows)


def _raised_by(event: str) -> str:
    return ", ".join(cause for cause, events in _contract()["raised_by"].items() if event in events)


def lifecycle_diagram() -> str:
    """Return the machine of a session as a Mermaid diagram."""
    return f"```mermaid\n{load_contract().machine(SESSIONS).mermaid().rstrip()}\n```"


def refusals() -> str:
    """Return the refusal codes in their order, as one sentence."""
    return ", ".join(refusal_order()) + "."


def refusal_order() -> list[str]:
    """Return the refusal codes in the order in which they are checked, those of apc/1.1 and of team rules included."""
    return list(with_team_codes(REFUSAL_ORDER_1_1))


TABLES: Mapping[str, Callable[[], str]] = {
    "phases": phases,
    "windows": windows,
    "promotion": promotion,
    "drift": drift,
    "facts": facts,
    "phase_of_state": phase_of_state,
    "lifecycle": lifecycle,
    "lifecycle_diagram": lifecycle_diagram,
    "refusals": refusals,
    **{
        name: partial(machine, name)
        for name in ("packet_lifecycle", "inter_agent_coordination", "intra_agent_coordination")
    },
}
