"""Public names of the first release that have a new name: they work for one minor release, and say so."""

import subprocess
import sys
from importlib import import_module

import pytest

import apc_agents
import apc_bus

STAYED = {
    "memory.conversation": ("ConversationContext", "MemoryUnavailable", "NewMessages", "StaleRevision", "encoded"),
    "memory.store": ("BaseMemoryStore", "Removed"),
    "tasks.store": ("Task", "TaskStatus", "TaskStore"),
    "tools": (
        "ActionError",
        "Effect",
        "MakeEffect",
        "ToolRegistry",
        "ValueUnserialisable",
        "json_form",
        "result_value",
    ),
}
"""Modules whose names are in several places now."""


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No module was imported by its former name yet."""
    for former in apc_agents.MOVED:
        monkeypatch.delitem(sys.modules, f"apc_agents.{former}", raising=False)
        monkeypatch.delitem(vars(apc_agents), former, raising=False)


@pytest.mark.parametrize(
    ("package", "former", "now"),
    [(apc_agents, "MemoryStateStore", "InMemoryStateStore"), (apc_bus, "MemoryBroker", "InMemoryBroker")],
)
def test_a_former_name_works_and_names_the_new_one(package: object, former: str, now: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{former} is now {now}"):
        assert getattr(package, former) is getattr(package, now)
    with pytest.raises(AttributeError, match="no attribute 'Neither'"):
        package.Neither  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.usefixtures("forgotten")
@pytest.mark.filterwarnings("ignore:apc_agents:DeprecationWarning")
@pytest.mark.parametrize(("former", "now"), apc_agents.MOVED.items())
def test_a_moved_module_is_the_new_one(former: str, now: str) -> None:
    module = import_module(now)
    with pytest.warns(DeprecationWarning, match=f"apc_agents.{former} is now {now}; the old name goes in the next"):
        assert import_module(f"apc_agents.{former}") is module
    assert (module.__name__, module.__spec__ and module.__spec__.name) == (now, now)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("former", [former for former in apc_agents.MOVED if "." not in former])
def test_a_moved_module_is_an_attribute_of_the_package(former: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"apc_agents.{former} is now {apc_agents.MOVED[former]};"):
        module = getattr(apc_agents, former)
    assert module is import_module(apc_agents.MOVED[former])


@pytest.mark.usefixtures("forgotten")
@pytest.mark.filterwarnings("ignore:apc_agents:DeprecationWarning")
@pytest.mark.parametrize(("former", "names"), STAYED.items())
def test_names_that_did_not_move_with_their_module_are_there(former: str, names: tuple[str, ...]) -> None:
    module = import_module(f"apc_agents.{former}")
    assert [name for name in names if not hasattr(module, name)] == []


def test_the_warning_names_the_line_that_imports() -> None:
    """In another process, as a user's program is."""
    program = "import apc_agents\nfrom apc_agents.tools import ToolRegistry\nfrom apc_agents.memory import Removed\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    lines = [line.partition(": ")[0] for line in done.stderr.splitlines() if "DeprecationWarning" in line]
    assert lines == ["<string>:2", "<string>:3"]
