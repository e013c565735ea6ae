"""A team: what is checked when it is built, what it registers, and how it is found by name."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, create_model

from apc_agents import Agent, AgentInvalid, AgentNotFound, HandlerContext, Team, load_agent, load_team, message
from apc_agents.team import load_contract_files, load_documents, load_members
from apc_contracts.schemas import register_schema

MODULE = """
from apc_agents import Agent, Team
lead = Agent("lead", role="lead", swarm="review")
reader = Agent("reader", role="reader", swarm="review")
team = Team("review", agents=[lead, reader], entry="lead")
def make():
    return team
"""


@message("question/1")
class Question(BaseModel):
    text: str


@message("answer/1")
class Answer(BaseModel):
    text: str


def _agents() -> list[Agent]:
    lead, reader = (Agent(name, role=name, swarm="review") for name in ("lead", "reader"))

    @lead.on(Question)
    async def ask(question: Question, ctx: HandlerContext) -> None: ...

    @reader.on(Answer)
    async def read(answer: Answer, ctx: HandlerContext) -> None: ...

    return [lead, reader]


def _team(**options: Any) -> Team:
    return Team("review", **{"agents": _agents(), "entry": "lead", **options})


def test_a_team_says_how_its_sessions_run() -> None:
    team = _team(decider="reader", reviewers=["lead"], deadline=timedelta(minutes=5))
    assert team.spec.members == ("lead", "reader")
    assert (team.spec.contract, team.spec.deciders, team.spec.reviewers) == ("task", ("reader",), ("lead",))
    assert team.spec.deadline_ms == 300_000
    assert _team().spec.deciders == ("lead",)


def test_a_contract_is_named_or_lies_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the module that makes the team, or in the working folder; the sessions get the name in the file."""
    assert _team(contract="incident").contract_file is None
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, name in ((here, "incident"), (there, "others")):
        folder.mkdir()
        (folder / "incident.yml").write_text(f"name: {name}\nextends: task\n")
    (there / "whole.json").write_text('{"name": "whole-1.0"}')
    (here / "incident_team.py").write_text(MODULE.replace('entry="lead"', 'entry="lead", contract="incident.yml"'))
    (here / "whole_team.py").write_text(MODULE.replace('entry="lead"', 'entry="lead", contract="whole.json"'))
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.chdir(there)
    team, whole = load_team("incident_team:team"), load_team("whole_team:team")
    assert (team.spec.contract, team.contract_file) == ("incident", here / "incident.yml")
    assert (whole.spec.contract, whole.contract_file) == ("whole-1.0", there / "whole.json")
    names = ["incident_team:team", "incident_team:lead", "incident_team:team"]
    assert load_contract_files(names) == [here / "incident.yml"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (None, "its contract own.yml is no file in "),
        ("rules: []", "own.yml has no name: begin it with one, as in name: review"),
        ("- a", "own.yml has no name"),
        ("name: [", "own.yml cannot be read: "),
        ("[" * 5_000, "own.yml cannot be read: "),
    ],
)
def test_a_file_that_names_no_contract_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str | None, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if body is not None:
        (tmp_path / "own.yml").write_text(body)
    with pytest.raises(AgentInvalid, match="team review: ") as invalid:
        _team(contract="own.yml")
    assert said in str(invalid.value)


def test_a_team_registers_the_models_of_its_agents() -> None:
    team = _team()
    assert set(team.documents) == {"question/1", "answer/1"}
    assert team.input is Question
    for schema_id, document in team.documents.items():
        register_schema(schema_id, document)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"entry": "leed"}, "entry 'leed' is no member; the members are lead, reader"),
        ({"decider": "x"}, "decider 'x' is no member"),
        ({"reviewers": ["x"]}, "reviewers 'x' is no member"),
        ({"agents": [*_agents(), _agents()[0]]}, "two agents 'lead'"),
        ({"agents": [], "entry": "lead"}, "no member"),
        ({"input": Answer}, "entry lead has no handler of the input Answer"),
        ({"on_failure": "panic"}, "on_failure: Input should be 'halt' or 'continue'"),
        ({"deadline": timedelta(0)}, "deadline_ms"),
        ({"max_rounds": 0}, "max_rounds"),
        ({"messages": [create_model("Plain", text=str)]}, "Plain has no schema"),
        ({"messages": [message("answer/1")(create_model("Other", text=int))]}, "are both answer/1"),
    ],
)
def test_a_team_that_cannot_work_is_refused_when_it_is_built(options: dict[str, Any], said: str) -> None:
    with pytest.raises(AgentInvalid, match=said):
        _team(**options)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"reviewers_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    return name


def test_a_team_and_its_members_are_found_by_name(module: str) -> None:
    assert load_team(f"{module}:team").name == "review"
    assert load_team(f"{module}:make").name == "review"
    assert load_agent(f"{module}:team:reader").agent_id == "reader"
    assert list(load_members(f"{module}:team")) == [f"{module}:team:lead", f"{module}:team:reader"]
    assert list(load_members(f"{module}:lead")) == [f"{module}:lead"]
    with pytest.raises(AgentNotFound, match=f"is a team: name one of its agents, {module}:team:lead"):
        load_agent(f"{module}:team")
    with pytest.raises(AgentInvalid, match="has no agent 'x'; it has lead, reader"):
        load_agent(f"{module}:team:x")
    with pytest.raises(AgentNotFound, match=r"is of type Agent, not an apc_agents\.Team"):
        load_team(f"{module}:lead")
    with pytest.raises(AgentNotFound, match="it has lead, reader, team"):
        load_team(f"{module}:teem")


def test_the_schemas_of_a_name_are_those_of_the_team_and_of_its_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = """
from pydantic import BaseModel
from apc_agents import message
@message("note/1")
class Note(BaseModel):
    text: str
class Hidden:
    @message("aside/1")
    class Aside(BaseModel):
        text: str
@lead.on(Note)
async def note(note: Note, ctx): ...
team = Team("review", agents=[lead, reader], entry="lead", messages=[Hidden.Aside])
"""
    (tmp_path / "documents_of_team.py").write_text(MODULE + more)
    monkeypatch.chdir(tmp_path)

    assert set(load_documents(["documents_of_team:team"])) == {"aside/1", "note/1"}
    assert set(load_documents(["documents_of_team:lead"])) == {"note/1"}
    assert load_documents([]) == {}
