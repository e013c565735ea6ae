"""Finds the agent or the team that `module:attribute` names, with one clear sentence when there is none."""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from apc_agents.agent import Agent
from apc_agents.errors import AgentInvalid, AgentNotFound
from apc_agents.typed.team import Team, documents_of
from apc_contracts.errors import ApcError


def load_agent(name: str) -> Agent:
    """Return the Agent under `package.module:attribute`, or the member under `package.module:team:agent_id`.

    The attribute is an Agent or a function that makes one. The working folder is searched like an installed package.

    Raises:
        AgentNotFound: another form of name, no such module or attribute, or it is no Agent.
        AgentInvalid: the module raises while it is imported, or the function while it makes the agent; the team has no
            such member.
    """
    place, _, member = _split(name)
    found = _load(place, name)
    if isinstance(found, Team) and member:
        return found.agent(member)
    if isinstance(found, Team):
        members = ", ".join(f"{name}:{agent.agent_id}" for agent in found.agents)
        raise AgentNotFound(f"{name} is a team: name one of its agents, {members}")
    if not isinstance(found, Agent) or member:
        raise AgentNotFound(f"{name} is of type {type(found).__name__}, not an apc_agents.Agent")
    return found


def load_team(name: str) -> Team:
    """Return the Team under `package.module:attribute`. Raises as `load_agent`."""
    found = _load(name, name)
    if not isinstance(found, Team):
        raise AgentNotFound(f"{name} is of type {type(found).__name__}, not an apc_agents.Team")
    return found


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


def _find_team(name: str) -> Team | None:
    found = _load(name, name) if name.count(":") == 1 else None
    return found if isinstance(found, Team) else None


def _split(name: str) -> tuple[str, str, str]:
    place, colon, member = name.rpartition(":")
    return (place, colon, member) if ":" in place else (name, "", "")


def _load(place: str, name: str) -> Any:
    module_name, colon, attribute = place.partition(":")
    if not (module_name and colon and attribute):
        raise AgentNotFound(f"{name!r} names no agent: write package.module:agent")
    module = _import(module_name)
    found = getattr(module, attribute, None)
    if found is None:
        raise AgentNotFound(f"module {module_name} has no {attribute!r}{_suggestion(module)}")
    return _make(name, found) if callable(found) and not isinstance(found, Agent | Team) else found


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
        raise AgentInvalid(f"module {name} needs {error.name!r}, which is not installed") from error
    except AgentInvalid:
        raise
    except Exception as error:
        raise AgentInvalid(f"module {name} cannot be imported: {type(error).__name__}: {error}") from error


def _suggestion(module: ModuleType) -> str:
    agents = sorted(key for key, value in vars(module).items() if isinstance(value, Agent | Team))
    return f"; it has {', '.join(agents)}" if agents else "; it has no agent"
