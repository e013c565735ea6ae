"""A team: agents that are started, run and tested as one, over a session of the contract `task`."""

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from apc_agents.agent import Agent
from apc_agents.errors import AgentInvalid, AgentNotFound
from apc_agents.typed import document_of, schema_of
from apc_contracts.errors import ApcError, remedy_for
from apc_contracts.payloads.session_signals import Budgets, TaskSessionSpec

DAY = timedelta(days=1)


class Team:
    """Agents that work on one task after the other, each in its own session.

    ```python
    from apc_contracts import Budgets


    @desk.on(Question)
    async def reply(question: Question, ctx: HandlerContext) -> None:
        await ctx.complete(Answer(text=question.text.upper()))


    critic = Agent("critic", role="critic", swarm="support")
    team = Team(
        "support",
        agents=[desk, critic],
        entry="desk",
        input=Question,
        decider="desk",
        reviewers=["critic"],
        approvals=1,
        contract="task",
        budgets=Budgets(packets=100, tokens=50_000),
        deadline=timedelta(hours=1),
        max_rounds=3,
        on_failure="halt",
        messages=[Answer],
    )
    assert team.agent("critic") is critic
    assert team.documents["question/1"]["required"] == ["text"]
    ```

    Args:
        name: as it is told in commands.
        agents: the members.
        entry: the agent_id that gets the input of a session.
        input: the model that starts a session; needed when the entry takes several.
        decider: the agent_id whose DONE ends the work (`ctx.complete`); default the entry.
        reviewers: agent ids that must approve the DONE before the session closes.
        approvals: how many of them.
        contract: the sessions' contract, whose coordinator is `task`: its name, or its file (`.yml`, `.yaml`, `.json`)
            beside the module that makes the team, or else in the working folder. What runs the team registers it.
        budgets: what a session may spend.
        deadline: how long a session may last.
        max_rounds: how often reviewers may send the work back, less one.
        on_failure: `halt` ends the session when a handler has failed permanently, `continue` does not.
        messages: models that agents emit and that neither handlers nor their modules name.

    Raises:
        AgentInvalid: two agents of one id, an id that is no member's, two models of one schema, a field out of range,
            no such file of a contract, or one without a name.
    """

    def __init__(
        self,
        name: str,
        *,
        agents: Sequence[Agent],
        entry: str,
        input: type[BaseModel] | None = None,
        decider: str | None = None,
        reviewers: Iterable[str] = (),
        approvals: int = 1,
        contract: str = "task",
        budgets: Budgets | None = None,
        deadline: timedelta = DAY,
        max_rounds: int = 2,
        on_failure: str = "halt",
        messages: Iterable[type[BaseModel]] = (),
    ) -> None:
        self.name = name
        self.agents = tuple(agents)
        self.entry = entry
        ids = [agent.agent_id for agent in self.agents]
        for agent_id in ids:
            if ids.count(agent_id) > 1:
                raise AgentInvalid(f"team {name} has two agents {agent_id!r}: give each its own id")
        self.contract_file = _contract_file(name, contract, sys._getframe(1).f_globals.get("__file__"))
        """The file of the sessions' contract; None where the contract is named."""
        decider, reviewers = decider or entry, tuple(reviewers)
        for what, named in (("entry", entry), ("decider", decider), *(("reviewers", one) for one in reviewers)):
            if named not in ids:
                raise AgentInvalid(f"team {name}: {what} {named!r} is no member; the members are {', '.join(ids)}")
        try:
            self.spec = TaskSessionSpec(
                contract=contract if self.contract_file is None else _name_in(name, self.contract_file),
                members=tuple(ids),
                deciders=(decider,),
                reviewers=reviewers,
                approvals=approvals,
                on_failure=on_failure,
                max_rounds=max_rounds,
                deadline_ms=round(deadline / timedelta(milliseconds=1)),
                budgets=budgets or Budgets(),
            )
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise AgentInvalid(f"team {name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        self.models = _models(name, [*messages, *(model for agent in self.agents for model in agent.models)])
        self.input = input or self._only_input()
        if self.input is not None and schema_of(self.input) not in self.agent(entry).schemas:
            raise AgentInvalid(f"team {name}: its entry {entry} has no handler of the input {self.input.__name__}")

    def agent(self, agent_id: str) -> Agent:
        """Return a member by its `agent_id`. Raises AgentInvalid without one of this id."""
        for agent in self.agents:
            if agent.agent_id == agent_id:
                return agent
        members = ", ".join(one.agent_id for one in self.agents)
        raise AgentInvalid(f"team {self.name} has no agent {agent_id!r}; it has {members}")

    def _only_input(self) -> type[BaseModel] | None:
        taken = [self.models[one] for one in self.agent(self.entry).schemas if one in self.models]
        return taken[0] if len(taken) == 1 else None

    @property
    def documents(self) -> dict[str, dict[str, Any]]:
        """The JSON Schema of every model, by schema: what `apc up` and `apc run` register."""
        return {schema_id: document_of(model) for schema_id, model in sorted(self.models.items())}


_FILES = frozenset({".json", ".yaml", ".yml"})


def _contract_file(team: str, contract: str, module_file: str | None) -> Path | None:
    """Return the file that a team names as its contract; None for a name. Raises AgentInvalid when there is none."""
    if Path(contract).suffix not in _FILES:
        return None
    folders = dict.fromkeys([*([] if module_file is None else [Path(module_file).resolve().parent]), Path.cwd()])
    found = next((file for folder in folders if (file := folder / contract).is_file()), None)
    if found is None:
        places = " nor in ".join(map(str, folders))
        raise AgentInvalid(f"team {team}: its contract {contract} is no file in {places}: put it there")
    return found


def _name_in(team: str, file: Path) -> str:
    """Return the name of the contract in a file; the rest is checked when it is registered."""
    try:
        body = file.read_bytes()
        document = json.loads(body) if file.suffix == ".json" else yaml.safe_load(body)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise AgentInvalid(f"team {team}: its contract {file} cannot be read: {error}") from error
    name = document.get("name") if isinstance(document, dict) else None
    if not isinstance(name, str):
        raise AgentInvalid(f"team {team}: its contract {file} has no name: begin it with one, as in name: {team}")
    return name


def documents_of(agents: Iterable[Agent]) -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of every model of these agents, by schema. Raises AgentInvalid as a Team."""
    models = _models("of these agents", [model for agent in agents for model in agent.models])
    return {schema_id: document_of(model) for schema_id, model in sorted(models.items())}


def _models(name: str, models: Iterable[type[BaseModel]]) -> dict[str, type[BaseModel]]:
    found: dict[str, type[BaseModel]] = {}
    for model in models:
        schema_id = schema_of(model)
        if schema_id is None:
            raise AgentInvalid(f'team {name}: {model.__name__} has no schema: decorate it with @message("name/1")')
        if found.setdefault(schema_id, model) is not model:
            raise AgentInvalid(f"team {name}: {found[schema_id].__name__} and {model.__name__} are both {schema_id}")
    return found


# Finds the agent or the team that `module:attribute` names, with one clear sentence when there is none.


def load_agent(name: str) -> Agent:
    """Return the Agent under `package.module:attribute`, or the member under `package.module:team:agent_id`.

    The attribute is an Agent or a function that makes one. The working folder is searched like an installed package.

    ```python
    assert load_agent("examples.reviewer:agent").agent_id == "reviewer-1"  # in a checkout of apc-bus
    try:
        load_agent("examples.reviewer:nobody")
    except AgentNotFound as error:
        assert str(error) == "module examples.reviewer has no 'nobody'; it has agent"
    ```

    Args:
        name: as `apc worker` and `apc up --agent` take it.

    Raises:
        AgentNotFound: another form of name, no such module or attribute, or it is no Agent.
        AgentInvalid: the module raises while it is imported, or the function while it makes the agent; the team has no
            such member.
    """
    place, _, member = _split(name)
    loaded = _load(place, name)
    if isinstance(loaded, Team) and member:
        return loaded.agent(member)
    if isinstance(loaded, Team):
        members = ", ".join(f"{name}:{agent.agent_id}" for agent in loaded.agents)
        raise AgentNotFound(f"{name} is a team: name one of its agents, {members}")
    if not isinstance(loaded, Agent) or member:
        raise AgentNotFound(f"{name} is of type {type(loaded).__name__}, not an apc_agents.Agent")
    return loaded


def load_team(name: str) -> Team:
    """Return the Team under `package.module:attribute`. Raises as `load_agent`.

    ```python
    try:
        load_team("examples.reviewer:agent")
    except AgentNotFound as error:
        assert str(error) == "examples.reviewer:agent is of type Agent, not an apc_agents.Team"
    ```

    Args:
        name: as `apc run` takes it.
    """
    loaded = _load(name, name)
    if not isinstance(loaded, Team):
        raise AgentNotFound(f"{name} is of type {type(loaded).__name__}, not an apc_agents.Team")
    return loaded


def load_members(name: str) -> dict[str, Agent]:
    """Return an agent, or every agent of a team, each by the name that `load_agent` takes. Raises as `load_agent`."""
    team = _find_team(name)
    if team is not None:
        return {f"{name}:{agent.agent_id}": agent for agent in team.agents}
    return {name: load_agent(name)}


def load_documents(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of every model of these agents and teams, by schema. Raises as `load_agent`."""
    agents = {place: agent for name in names for place, agent in load_members(name).items()}
    teams = [team for name in names if (team := _find_team(name)) is not None]
    return documents_of(agents.values()) | {key: found for team in teams for key, found in team.documents.items()}


def load_contract_files(names: Sequence[str]) -> list[Path]:
    """Return the contract files of the teams among these, each once. Raises as `load_agent`."""
    teams = [team for name in names if (team := _find_team(name)) is not None]
    return list(dict.fromkeys(team.contract_file for team in teams if team.contract_file is not None))


def _find_team(name: str) -> Team | None:
    loaded = _load(name, name) if name.count(":") == 1 else None
    return loaded if isinstance(loaded, Team) else None


def _split(name: str) -> tuple[str, str, str]:
    place, colon, member = name.rpartition(":")
    return (place, colon, member) if ":" in place else (name, "", "")


def _load(place: str, name: str) -> Any:
    module_name, colon, attribute = place.partition(":")
    if not (module_name and colon and attribute):
        raise AgentNotFound(f"{name!r} names no agent: write package.module:agent")
    module = _import(module_name)
    value = getattr(module, attribute, None)
    if value is None:
        raise AgentNotFound(f"module {module_name} has no {attribute!r}{_suggestion(module)}")
    return _make(name, value) if callable(value) and not isinstance(value, Agent | Team) else value


def _make(name: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except ApcError:
        raise
    except Exception as error:
        raise AgentInvalid(f"{name} makes no agent: {type(error).__name__}: {error}") from error


def _import(name: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise AgentNotFound(
                f"no module {name!r} (no {error.name!r} was found): is it installed, or below the working folder?"
            ) from error
        remedy = remedy_for(str(error.name))
        missing = f"module {name} needs {error.name!r}, which is not installed"
        raise AgentInvalid(f"{missing}: {remedy}" if remedy else missing) from error
    except AgentInvalid:
        raise
    except Exception as error:
        raise AgentInvalid(f"module {name} cannot be imported: {type(error).__name__}: {error}") from error


def _suggestion(module: ModuleType) -> str:
    agents = sorted(key for key, value in vars(module).items() if isinstance(value, Agent | Team))
    return f"; it has {', '.join(agents)}" if agents else "; it has no agent"
