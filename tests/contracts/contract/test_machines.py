"""The machines of the contract are the ones of the protocol: every state with every event."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_contracts import TransitionRefused
from apc_contracts.contract.contract import Contract, load_contract
from apc_contracts.contract.machines import Machine

LIFECYCLE = """
DRAFT -emit-> NORMALIZED
NORMALIZED -schema_pass-> SCHEMA_VALIDATED
SCHEMA_VALIDATED -policy_pass-> POLICY_VALIDATED
POLICY_VALIDATED -route_selected-> ROUTED
ROUTED -delivery_ack-> DELIVERED
DELIVERED -consumer_apply-> APPLIED
APPLIED -verification_pass-> VERIFIED
VERIFIED -promotion_eligible-> PROMOTED
PROMOTED -persisted-> ARCHIVED
VERIFIED -non_promotable_complete-> ARCHIVED
NORMALIZED -schema_fail-> REJECTED_SCHEMA
SCHEMA_VALIDATED -policy_fail-> REJECTED_POLICY
SCHEMA_VALIDATED POLICY_VALIDATED ROUTED -ttl_expired-> EXPIRED
DELIVERED -expired_before_handler-> EXPIRED
DELIVERED -consumer_reject-> REJECTED_POLICY
APPLIED -verification_fail-> REJECTED_POLICY
DELIVERED -retry_scheduled-> ROUTED
ROUTED DELIVERED -dead_lettered-> DEAD_LETTERED
DEAD_LETTERED -requeued-> ROUTED
DEAD_LETTERED -discarded-> ARCHIVED
APPLIED -higher_conflict_resolution_arrived-> SUPERSEDED
SUPERSEDED -supersession_recorded-> ARCHIVED
any -retraction_packet_received-> RETRACTED
"""
INTER = """
SESSION_OPEN -research_briefs_dispatched-> DIFFERENTIATED_RESEARCH
DIFFERENTIATED_RESEARCH -all_swarms_ready-> INDEPENDENT_DISCOVERY
INDEPENDENT_DISCOVERY -generation_window_open-> SELECTIVE_TRANSFER
SELECTIVE_TRANSFER -transfer_accepted-> CONTROLLED_CONVERGENCE
INDEPENDENT_DISCOVERY SELECTIVE_TRANSFER -generation_limit_reached-> CONTROLLED_CONVERGENCE
CONTROLLED_CONVERGENCE -candidate_pool_ready-> ARBITRATION
ARBITRATION -decision_committed-> EXECUTION
EXECUTION -artifact_and_eval_emitted-> VALIDATION
VALIDATION -validation_pass-> PROMOTION
PROMOTION -commons_commit_complete-> CLOSED
VALIDATION -validation_fail_or_drift-> INDEPENDENT_DISCOVERY
live -stop_signal_or_budget_exhausted-> HALTED
"""
INTRA = """
LOCAL_IDLE -task_assigned-> CONTEXT_SYNC
CONTEXT_SYNC -context_complete-> IDEA_SYNTHESIS
IDEA_SYNTHESIS -idea_packet_ready-> SELF_CRITIQUE
SELF_CRITIQUE -critique_pass-> LOCAL_BUILD
SELF_CRITIQUE -critique_fail-> IDEA_SYNTHESIS
LOCAL_BUILD -artifact_local_ready-> LOCAL_VERIFY
LOCAL_VERIFY -local_checks_pass-> PUBLISH
LOCAL_VERIFY -local_checks_fail-> IDEA_SYNTHESIS
PUBLISH -packet_emitted-> WAIT_FOR_ACK
WAIT_FOR_ACK -ack_accepted-> LOCAL_IDLE
WAIT_FOR_ACK -ack_rejected_or_deferred-> IDEA_SYNTHESIS
live -cancel_or_error-> LOCAL_HALT
"""
TERMINAL = {
    "packet_lifecycle": {"ARCHIVED", "REJECTED_SCHEMA", "REJECTED_POLICY", "EXPIRED", "RETRACTED"},
    "inter_agent_coordination": {"CLOSED", "HALTED"},
    "intra_agent_coordination": {"LOCAL_HALT"},
}
INITIAL = {
    "packet_lifecycle": "DRAFT",
    "inter_agent_coordination": "SESSION_OPEN",
    "intra_agent_coordination": "LOCAL_IDLE",
}
DRAWN = {"packet_lifecycle": LIFECYCLE, "inter_agent_coordination": INTER, "intra_agent_coordination": INTRA}
EVERYTHING_HOLDS = {
    "generation": 23.0,
    "session_limit": 23.0,
    "candidates": 2.0,
    "vetoed": False,
    "veto_overridden": False,
    "rtf": 1.0,
    "stability": 0.9,
    "audit": 1.0,
    "outcome": 0.5,
    "learnability": 0.7,
    "generalization_ratio": 0.8,
    "drift_risk": 0.3,
}
GUARDS: list[tuple[str, str, dict[str, float | bool], bool]] = [
    ("INDEPENDENT_DISCOVERY", "generation_window_open", {"generation": 10.0}, False),
    ("INDEPENDENT_DISCOVERY", "generation_window_open", {"generation": 11.0}, True),
    ("INDEPENDENT_DISCOVERY", "generation_window_open", {"generation": 11}, True),
    ("INDEPENDENT_DISCOVERY", "generation_window_open", {}, False),
    ("SELECTIVE_TRANSFER", "transfer_accepted", {"generation": 20.0}, False),
    ("SELECTIVE_TRANSFER", "transfer_accepted", {"generation": 21.0}, True),
    ("SELECTIVE_TRANSFER", "generation_limit_reached", {"generation": 5.0, "session_limit": 6.0}, False),
    ("INDEPENDENT_DISCOVERY", "generation_limit_reached", {"generation": 6.0, "session_limit": 6.0}, True),
    ("INDEPENDENT_DISCOVERY", "generation_limit_reached", {"generation": 6.0}, False),
    ("CONTROLLED_CONVERGENCE", "candidate_pool_ready", {"candidates": 1.0}, False),
    ("CONTROLLED_CONVERGENCE", "candidate_pool_ready", {"candidates": 2.0}, True),
    ("ARBITRATION", "decision_committed", {"vetoed": True, "veto_overridden": False}, False),
    ("ARBITRATION", "decision_committed", {"vetoed": True, "veto_overridden": True}, True),
    ("ARBITRATION", "decision_committed", {"vetoed": False, "veto_overridden": False}, True),
    ("ARBITRATION", "decision_committed", {"vetoed": False}, False),
]


def drawn(name: str, machine: Machine) -> dict[tuple[str, str], str]:
    table: dict[tuple[str, str], str] = {}
    for line in DRAWN[name].split("\n"):
        match = re.fullmatch(r"(.+) -(\w+)-> (\w+)", line)
        if match is None:
            continue
        sources, event, target = match.groups()
        for source in _states(sources, machine):
            table[source, event] = target
    return table


def _states(sources: str, machine: Machine) -> list[str]:
    if sources == "any":
        return list(machine.states)
    if sources == "live":
        return [state for state in machine.states if state not in machine.terminal]
    return sources.split()


@pytest.mark.parametrize("name", DRAWN)
def test_every_state_with_every_event(name: str, contract: Contract) -> None:
    machine = contract.machine(name)
    table = drawn(name, machine)
    events = {event for _, event in table}

    assert machine.initial == INITIAL[name]
    assert machine.terminal == TERMINAL[name]
    for state in machine.states:
        for event in events:
            if (state, event) in table:
                assert machine.step(state, event, EVERYTHING_HOLDS) == table[state, event]
            else:
                with pytest.raises(TransitionRefused, match=f"{event} refused in {state}"):
                    machine.step(state, event, EVERYTHING_HOLDS)
    assert {(edge.source, edge.event) for edge in machine.edges} == set(table)


@pytest.mark.parametrize(("state", "event", "facts", "is_taken"), GUARDS)
def test_guards(state: str, event: str, facts: dict[str, float | bool], is_taken: bool, contract: Contract) -> None:
    machine = contract.machine("inter_agent_coordination")
    if is_taken:
        assert machine.step(state, event, facts) != state
    else:
        with pytest.raises(TransitionRefused, match="the guard"):
            machine.step(state, event, facts)


@pytest.mark.parametrize(
    "metric", [name for name in EVERYTHING_HOLDS if name in "rtf stability audit outcome drift_risk"]
)
def test_validation_pass_is_the_promotion_gate(metric: str, contract: Contract) -> None:
    machine = contract.machine("inter_agent_coordination")
    facts = {name: value for name, value in EVERYTHING_HOLDS.items() if name != metric}

    assert machine.step("VALIDATION", "validation_pass", EVERYTHING_HOLDS) == "PROMOTION"
    with pytest.raises(TransitionRefused):
        machine.step("VALIDATION", "validation_pass", facts)


def test_walk_gives_every_state(contract: Contract) -> None:
    machine = contract.machine("intra_agent_coordination")

    walked = machine.walk(["task_assigned", "context_complete", "idea_packet_ready", "cancel_or_error"])
    assert walked == ("LOCAL_IDLE", "CONTEXT_SYNC", "IDEA_SYNTHESIS", "SELF_CRITIQUE", "LOCAL_HALT")
    assert machine.walk([]) == ("LOCAL_IDLE",)


@pytest.mark.parametrize(
    ("state", "event", "why"),
    [
        ("NOWHERE", "emit", "no state NOWHERE"),
        ("DRAFT", "dance", "no event dance"),
        ("DRAFT", "persisted", "legal: emit"),
    ],
)
def test_refusals_say_why(state: str, event: str, why: str, contract: Contract) -> None:
    with pytest.raises(TransitionRefused, match=why) as caught:
        contract.machine("packet_lifecycle").step(state, event)
    assert (caught.value.state, caught.value.event) == (state, event)


@given(st.lists(st.sampled_from(sorted({edge.event for edge in load_contract().machine("packet_lifecycle").edges}))))
def test_terminal_states_are_left_by_retraction_only(events: list[str]) -> None:
    machine = load_contract().machine("packet_lifecycle")
    state = machine.initial
    for event in events:
        edge = machine.edge(state, event)
        if edge is None:
            continue
        assert state not in machine.terminal or event == "retraction_packet_received"
        state = edge.target


@pytest.mark.parametrize("name", DRAWN)
def test_mermaid_draws_every_edge(name: str, contract: Contract) -> None:
    machine = contract.machine(name)
    lines = machine.mermaid().splitlines()

    assert lines[0] == "stateDiagram-v2"
    assert f"    [*] --> {machine.initial}" in lines
    assert {f"    {state} --> [*]" for state in machine.terminal} <= set(lines)
    for edge in machine.edges:
        starts = (f"    {edge.source} --> {edge.target} : {edge.event}", f"    ANY --> {edge.target} : {edge.event}")
        assert any(line.startswith(starts) for line in lines)
