"""The rules of the teams of examples/: their tests pass, and the gate refuses agents that break them."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from apc_agents import Agent, EmitRefused, HandlerContext, Team
from apc_client import SessionHalted, TeamTestClient, run_rule_tests
from apc_contracts import ProofBundle

from .conftest import EXAMPLES, load

pytestmark = pytest.mark.long

TEAMS = (
    ("incident-room", "room"),
    ("nightly-job", "nightly"),
    ("pull-request-review", "review"),
    ("retrieval-with-critic", "retrieval"),
    ("support-desk", "desk"),
)


@pytest.mark.parametrize(("folder", "module"), TEAMS)
def test_each_rule_passes_its_tests(folder: str, module: str) -> None:
    """Each rule holds in one test and fails in another."""
    team = load(folder, module).team
    results = run_rule_tests(team)
    assert [f"{one.name}: {one.said}" for one in results if not one.has_passed] == []
    names = {line.split()[-1] for line in team.contract_file.read_text().splitlines() if line.startswith("  - name: ")}
    rules = names & {rule for one in results for rule in one.failed | one.held}
    assert len(rules) >= 2
    assert rules == set().union(*(one.failed for one in results)) == set().union(*(one.held for one in results))


def with_another(team: Team, agent: Agent) -> Team:
    """Return a team of which one agent has been replaced by another of its id."""
    agents = [agent if one.agent_id == agent.agent_id else one for one in team.agents]
    return Team(team.name, agents=agents, entry=team.entry, input=team.input, contract=str(team.contract_file))


def hasty(agent: Agent, model: Any, content: Any, refused: list[EmitRefused], to: str | None = None) -> Agent:
    """Return an agent that says this at once, as the result when it names nobody, and notes how it was refused."""
    made = Agent(agent.agent_id, role=agent.role, swarm=agent.swarm)

    @made.on(model)
    async def say(given: Any, ctx: HandlerContext) -> None:
        try:
            if to is None:
                await ctx.complete(content, requires_ack=True)
            else:
                await ctx.emit(content, to=to, requires_ack=True)
        except EmitRefused as error:
            refused.append(error)
            raise

    return made


async def refusal_of(team: Team, given: Any, refused: list[EmitRefused], url: str, folder: Path) -> EmitRefused:
    """Return how the gate refuses a packet of a team, whose session halts then."""
    async with TeamTestClient(team, database_url=url, folder=folder) as client:
        session = await client.start(given)
        with pytest.raises(SessionHalted, match="HANDLER_FAILED"):
            await session.result(timeout=30)
    return refused[0]


async def test_a_clerk_cannot_refund_much_without_a_lead(postgres_url: str, tmp_path: Path) -> None:
    desk, refused = load("support-desk", "desk"), list[EmitRefused]()
    clerk = hasty(desk.clerk, desk.Complaint, desk.Refund(order="A-2", amount=480), refused, to="cashier")
    complaint = desk.Complaint(order="A-2", text="broken")
    error = await refusal_of(with_another(desk.team, clerk), complaint, refused, postgres_url, tmp_path)
    assert (error.rule, error.message) == ("lead-approves-large", "A refund above 100 needs a support lead.")
    assert error.remedy == "Ask a support lead about exactly this refund."


async def test_a_lead_cannot_review_what_nobody_has_read(postgres_url: str, tmp_path: Path) -> None:
    review, refused = load("pull-request-review", "review"), list[EmitRefused]()
    lead = hasty(review.lead, review.PullRequest, review.Review(number=1, merge=True, opinions=[]), refused)
    request = review.PullRequest(number=1, diff="")
    error = await refusal_of(with_another(review.team, lead), request, refused, postgres_url, tmp_path)
    assert (error.rule, error.values) == ("two-readers", {'authors("opinion/1")': 0})


async def test_an_asker_cannot_answer_past_the_critic(postgres_url: str, tmp_path: Path) -> None:
    retrieval, refused = load("retrieval-with-critic", "retrieval"), list[EmitRefused]()
    answer = retrieval.Answer(quotation="It is so.", source="log.txt", refused=[])
    asker = hasty(retrieval.asker, retrieval.Question, answer, refused)
    question = retrieval.Question(text="Is it so?")
    error = await refusal_of(with_another(retrieval.team, asker), question, refused, postgres_url, tmp_path)
    assert (error.rule, error.remedy) == ("critic-accepted-it", "Cite the critic's verdict.")


async def test_a_bookkeeper_cannot_report_without_the_till(postgres_url: str, tmp_path: Path) -> None:
    nightly, refused = load("nightly-job", "nightly"), list[EmitRefused]()
    day = nightly.Day(date="2026-11-23")
    bookkeeper = hasty(nightly.bookkeeper, nightly.Day, nightly.Report(date=day.date, text="much"), refused)
    error = await refusal_of(with_another(nightly.team, bookkeeper), day, refused, postgres_url, tmp_path)
    assert (error.rule, error.message) == ("asked-the-till", "A report rests on what the till has said.")


# The incident room.


async def test_the_room_acts_when_a_lead_has_approved(postgres_url: str, tmp_path: Path) -> None:
    room = load("incident-room", "room")
    room.DONE = tmp_path / "done.txt"
    people = {"ida": "lead"}
    async with TeamTestClient(room.team, people=people, database_url=postgres_url, folder=tmp_path) as client:
        small = await client.run(room.Alert(service="api", symptom="slow"))
        assert small.timeline == ["slow", "restart api", "done, receipt-1"]
        alert = room.Alert(service="shop", symptom="5xx after a deploy")
        denied = await client.start(alert)
        assert (await client.question(denied)).content["content"]["kind"] == "rollback"
        await client.answer(denied, approved=False, note="not now")
        assert (await denied.result(timeout=30)).timeline == [alert.symptom, "nothing done: not now"]
        approved = await client.start(alert)
        await client.answer(approved, approved=True)
        assert (await approved.result(timeout=30)).timeline == [alert.symptom, "rollback shop", "done, receipt-2"]
    assert room.DONE.read_text().splitlines() == ["restart api", "rollback shop"]


@pytest.mark.parametrize(
    ("mode", "rule"),
    [
        ("no evidence", "two-witnesses"),
        ("one finding", "two-witnesses"),
        ("invented ids", "evidence_is_known"),
        ("text", "two-witnesses"),
    ],
)
async def test_a_faulty_fixer_does_nothing(mode: str, rule: str, postgres_url: str, tmp_path: Path) -> None:
    """It asks nobody, and acts on what it likes: the gate refuses the action, and so it is not made."""
    room, refused = load("incident-room", "room"), list[str]()
    room.DONE = tmp_path / "done.txt"
    fixer = Agent("fixer", role="fixer", swarm="sre")

    @fixer.on(room.Finding)
    async def fix(finding: Any, ctx: HandlerContext) -> None:
        invented = tuple(f"packet:{uuid4()}" for _ in range(2))
        references = {"invented ids": invented, "text": ("trust me",)}.get(mode, ())
        if mode == "one finding":
            ctx.cite(ctx.packet)
        bundle: dict[str, Any] = {"proof_bundle": ProofBundle(evidence_refs=references)} if references else {}
        action = room.Action(service=finding.service, kind="rollback", risk="high")
        packet = await ctx.emit(action, to="scribe", **bundle)
        try:
            await ctx.once("rollback", lambda: room.act(action), after=packet)
        except EmitRefused as error:
            refused.append(error.rule)
            raise

    team = with_another(room.team, fixer)
    async with TeamTestClient(team, database_url=postgres_url, folder=tmp_path) as client:
        session = await client.start(room.Alert(service="shop", symptom="5xx after a deploy"))
        with pytest.raises(SessionHalted, match="HANDLER_FAILED fixer"):
            await session.result(timeout=30)
    assert refused[0] == rule, "the session halts then"
    assert not room.DONE.exists()


def test_each_rule_of_the_room_is_short() -> None:
    rules = (EXAMPLES / "incident-room/incident.yml").read_text().partition("rules:\n")[2].partition("tests:\n")[0]
    assert [len(rule.splitlines()) <= 6 for rule in rules.split("  - name: ")[1:]] == [True] * 3
