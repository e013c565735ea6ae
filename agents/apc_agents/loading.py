"""Finds the agent that `module:attribute` names, with one clear sentence when there is none."""

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from apc_agents.agent import Agent
from apc_agents.errors import AgentInvalid, AgentNotFound
from apc_contracts.errors import ApcError


def load_agent(name: str) -> Agent:
    """Return the Agent under `package.module:attribute`; the attribute is an Agent or a function that makes one.

    The working folder is searched like an installed package.

    Raises:
        AgentNotFound: another form of name, no such module or attribute, or it is no Agent.
        AgentInvalid: the module raises while it is imported, or the function while it makes the agent.
    """
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise AgentNotFound(f"{name!r} names no agent: write package.module:agent")
    module = _import(module_name)
    found = getattr(module, attribute, None)
    if found is None:
        raise AgentNotFound(f"module {module_name} has no {attribute!r}{_suggestion(module)}")
    if callable(found) and not isinstance(found, Agent):
        found = _make(name, found)
    if not isinstance(found, Agent):
        raise AgentNotFound(f"{name} is a {type(found).__name__}, not an apc_agents.Agent")
    return found


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
    agents = sorted(key for key, value in vars(module).items() if isinstance(value, Agent))
    return f"; it has {', '.join(agents)}" if agents else "; it has no agent"
