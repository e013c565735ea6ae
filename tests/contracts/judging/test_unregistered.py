"""Agents of a SessionSpec that nobody has registered, with the ids that may be meant."""

from apc_contracts.judging.facts import find_unregistered
from apc_contracts.payloads.session_signals import SessionSpec, SwarmSpec


def spec(*agents: str, members: tuple[str, ...] = ()) -> SessionSpec:
    return SessionSpec(
        swarms=(SwarmSpec(swarm_id="alpha", agents=agents),),
        members=members,
        generation_limit=1,
        generation_deadline_ms=1000,
        state_deadline_ms=1000,
    )


def test_each_unknown_name_has_its_place_and_the_nearest_ids() -> None:
    registered = {"reviewer-1", "reviewer-2", "lead"}
    found = find_unregistered(spec("reviewer-1", "reviwer-2", members=("leed", "zzz")), registered)
    assert [(one.path, one.agent_id) for one in found] == [
        ("swarms[0].agents[1]", "reviwer-2"),
        ("members[0]", "leed"),
        ("members[1]", "zzz"),
    ]
    assert found[0].nearest[0] == "reviewer-2"
    assert found[1].sentence == "members[0]: agent leed is not registered: do you mean lead?"
    assert found[2].sentence == "members[1]: agent zzz is not registered"


def test_a_spec_of_registered_agents_is_clean() -> None:
    assert find_unregistered(spec("a", "b", members=("c",)), {"a", "b", "c"}) == []
