"""`module:agent` leads to an agent, or to one clear sentence."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from apc_agents import AgentInvalid, AgentNotFound, load_agent

MODULE = """
from apc_agents import Agent
agent = Agent("a-1", role="r", swarm="s")
number = 7
def make() -> Agent:
    return Agent("a-2", role="r", swarm="s")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_of_the_working_folder_is_found(folder: Path) -> None:
    (folder / "my_agents_found.py").write_text(MODULE)
    assert load_agent("my_agents_found:agent").agent_id == "a-1"
    assert load_agent("my_agents_found:make").agent_id == "a-2"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_agents_bad", "write package.module:agent"),
        (":agent", "write package.module:agent"),
        ("nowhere_at_all:agent", "no module 'nowhere_at_all'"),
        ("my_agents_bad.deeper:agent", "no module 'my_agents_bad.deeper'"),
        ("my_agents_bad:missing", "has no 'missing'; it has agent"),
        ("my_agents_bad:number", "is of type int, not an apc_agents.Agent"),
    ],
)
def test_what_leads_to_no_agent_is_said_in_one_sentence(folder: Path, name: str, message: str) -> None:
    (folder / "my_agents_bad.py").write_text(MODULE)
    with pytest.raises(AgentNotFound, match=message):
        load_agent(name)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import not_installed_anywhere", "needs 'not_installed_anywhere', which is not installed"),
        ("raise ModuleNotFoundError(name='faststream')", r"not installed: pip install 'apc-bus\[faststream\]'"),
        ("1 / 0", "ZeroDivisionError"),
        ("def f(:", "SyntaxError"),
        ("from apc_agents import Agent\nAgent('_', role='r', swarm='s')", "reserved"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why(folder: Path, source: str, message: str) -> None:
    (folder / "my_agents_broken.py").write_text(source)
    with pytest.raises(AgentInvalid, match=message):
        load_agent("my_agents_broken:agent")
