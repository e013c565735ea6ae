"""An application uses the command line through `apc_cli.for_applications` alone, and all of that is used."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

from apc_cli import for_applications

APPS = Path(__file__).parents[2] / "apps"
FACE = "apc_cli.for_applications"


def test_an_application_imports_the_face_and_the_face_has_no_more() -> None:
    used: dict[str, set[str]] = {}
    for path in APPS.rglob("*.py"):
        for module, names in imports_of(ast.parse(path.read_text(encoding="utf-8"))):
            if module.partition(".")[0] == "apc_cli":
                used.setdefault(module, set()).update(names)
    assert used == {FACE: set(for_applications.NAMES)}


@pytest.mark.parametrize(("name", "module"), for_applications.NAMES.items())
def test_a_name_leads_to_what_type_checkers_see(name: str, module: str) -> None:
    assert (module, (name,)) in imports_of(ast.parse(Path(for_applications.__file__).read_text(encoding="utf-8")))
    assert getattr(for_applications, name) is getattr(import_module(module), name)


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'open_bus'"):
        _ = for_applications.open_bus  # type: ignore[attr-defined]


def imports_of(tree: ast.Module) -> list[tuple[str, tuple[str, ...]]]:
    """Return module and names of each import."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, ()) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.module or "", tuple(alias.name for alias in node.names)))
    return found
