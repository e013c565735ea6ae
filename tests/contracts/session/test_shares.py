"""What the console and the web page show of a session's budget and members."""

from datetime import timedelta

from apc_contracts.session.budgets import BudgetShare, budget_shares, memberships

from .conftest import Simulation
from .test_budgets import IDEA, Tree


def test_a_part_that_was_cut_is_its_own_share(simulation: Simulation) -> None:
    tree = Tree(simulation, packets=100, wall_ms=60_000)
    assert tree.give("a", "packets=10") is None
    tree.send("a", IDEA)
    shares = {(one.task, one.resource): one for one in budget_shares(tree.document, tree.document.opened_at)}
    own, cut = shares["", "packets"], shares["a", "packets"]
    assert cut == BudgetShare("a", "packets", 10, 1, 9)
    assert own.limit == 100 and own.spent is not None and own.left == 100 - own.spent - 10
    assert shares["", "wall_ms"] == BudgetShare("", "wall_ms", None, None, 60_000)
    later = budget_shares(tree.document, tree.document.opened_at + timedelta(seconds=20))
    assert [one.left for one in later if one.resource == "wall_ms"] == [40_000]


def test_what_was_not_charged_stands_beside_the_part_that_it_would_have_drawn_from(simulation: Simulation) -> None:
    tree = Tree(simulation, tokens=100)
    assert tree.give("a", "tokens=10") is None
    refused = [("a", "tokens", 5.0), ("a", "tokens", 2.0), ("unknown", "tokens", 3.0)]
    shares = budget_shares(tree.document, tree.document.opened_at, refused)
    assert {one.task: one.refused for one in shares if one.resource == "tokens"} == {"": 3, "a": 7}


def test_an_agent_of_a_dead_swarm_is_not_live(simulation: Simulation) -> None:
    tree = Tree(simulation)
    document = tree.document
    swarm, agents = next(iter(document.swarms.items()))
    assert {one.agent_id for one in memberships(document) if one.swarm == swarm} == set(agents)
    assert all(one.is_live for one in memberships(document))
    document.dead_swarms.append(swarm)
    assert {one.agent_id for one in memberships(document) if not one.is_live} == set(agents)
    last = memberships(document)[-1]
    assert last.swarm is None and last.is_live
