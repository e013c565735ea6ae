"""Who may run beside whom: agents of a host share its broker user, and judges run apart from those they judge."""

from dataclasses import replace

import pytest

from apc_contracts.identity.registry import (
    CALLER,
    CLIENTS,
    Kind,
    Neighbours,
    Registration,
    host_objection,
    voice_objection,
)
from apc_contracts.vocabulary import PacketType, Right

WORKER = Registration("worker", "host.h0", "r", "s", host="h0")
JUDGE = Registration("judge", "host.h0", "r", "s", rights=frozenset({Right.VETO}), host="h0")
ALONE = Registration("alone", "agent.alone", "r", "s")


def objection(added: Registration, *known: Registration) -> str:
    return host_objection(added, Neighbours(known)) or ""


def test_agents_of_a_host_share_its_broker_user() -> None:
    other = replace(WORKER, agent_id="other")
    assert not objection(WORKER, other, ALONE)
    stray = replace(other, broker_user="agent.other")
    assert "have the broker user host.h0, not agent.other" in objection(stray, WORKER)
    assert not objection(stray, replace(WORKER, is_revoked=True))
    shared = replace(WORKER, broker_user="guest")
    assert not objection(replace(shared, agent_id="other"), shared), "where all agents have one user, so has a host"


@pytest.mark.parametrize("host", [None, "h1"])
def test_the_broker_user_of_a_host_is_for_its_agents_alone(host: str | None) -> None:
    assert "host.h0 is for the agents of that host alone" in objection(replace(WORKER, host=host))
    person = Registration("ann", "host.h0", "r", "people", kind=Kind.PERSON, via=frozenset({"host.h0"}))
    assert objection(person)


@pytest.mark.parametrize("right", list(Right))
def test_who_judges_runs_on_another_host_than_the_judged(right: Right) -> None:
    judge = replace(JUDGE, rights=frozenset({right}))
    does_judge = right in {Right.DECIDE, Right.VALIDATE, Right.VETO}
    for added, known in ((judge, WORKER), (WORKER, judge)):
        assert bool(objection(added, known)) is does_judge
        assert not objection(replace(added, allow_shared=True), known)
        assert not objection(added, replace(known, is_revoked=True))
        assert not objection(added, replace(known, host="h1", broker_user="host.h1"))
    assert not objection(judge, replace(JUDGE, agent_id="other-judge")) or not does_judge
    if does_judge:
        assert objection(judge, WORKER).startswith("agent judge judges (decide, validate, veto), and worker on host h0")


def test_an_agent_is_no_neighbour_of_itself() -> None:
    assert not objection(JUDGE, replace(WORKER, agent_id="judge"))
    assert not objection(replace(JUDGE, broker_user="guest"), JUDGE), "it gets another user"


def test_a_registration_takes_the_place_of_the_one_before() -> None:
    neighbours = Neighbours([JUDGE])
    neighbours.put(replace(JUDGE, host="h1", broker_user="host.h1"))
    assert host_objection(WORKER, neighbours) is None
    neighbours.put(JUDGE)
    assert host_objection(WORKER, neighbours) is not None
    neighbours.put(replace(JUDGE, is_revoked=True))
    assert host_objection(WORKER, neighbours) is None


def test_people_and_agents_are_found_for_each_other() -> None:
    person = Registration("ann", "web", "r", "people", kind=Kind.PERSON, via=frozenset({"web"}))
    neighbours = Neighbours([person, ALONE, WORKER, replace(ALONE, agent_id="gone", is_revoked=True)])
    assert list(neighbours.of_other_kind(WORKER)) == [person]
    assert {one.agent_id for one in neighbours.of_other_kind(person)} == {"alone", "worker"}
    robbed = replace(ALONE, broker_user="web")
    assert voice_objection(robbed, neighbours.of_other_kind(robbed)) is not None


def test_a_door_starts_and_answers_as_its_callers_and_as_nobody_else() -> None:
    """The clients of callers have no inbox and so no handlers; all others have another user."""
    starts = Registration("client-ida", "door", CALLER, CLIENTS, rights=frozenset({Right.OPERATE}))
    answers = Registration("bob", "door", CALLER, "people", kind=Kind.PERSON, via=frozenset({"door"}))
    assert voice_objection(starts, [answers]) is None and voice_objection(answers, [starts]) is None
    assert voice_objection(replace(answers, role="lead"), [starts]) is not None
    for other in (
        replace(starts, role="client"),
        replace(starts, agent_id="worker"),
        replace(starts, swarm_id="s"),
        replace(starts, handles=frozenset({PacketType.MESSAGE})),
    ):
        assert voice_objection(other, [answers]) is not None
