"""No file of a package may import itself through others: who reads a file never comes back to it."""

import ast

from tests.support.house import circles, imports_of, imports_of_all_packages, with_packages


def test_no_file_imports_itself_through_others() -> None:
    """Imports inside functions and under TYPE_CHECKING count, and the `__init__` that an import runs on its way."""
    imports = imports_of_all_packages()
    assert len(imports) > 300, "the packages were not found"
    assert list(circles(imports)) == []


def test_a_circle_is_found() -> None:
    imports = {"a": frozenset({"b"}), "b": frozenset({"c"}), "c": frozenset({"b"}), "d": frozenset({"d", "a"})}
    assert sorted(circles(imports)) == [("b", "c"), ("d",)]


def test_hidden_imports_are_read() -> None:
    source = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from room import shelf

def late():
    import room.table
    from room.chair import Leg
    from . import near
    from .low import Foot
"""
    modules = frozenset({"room", "room.shelf", "room.table", "room.chair", "room.near", "room.low"})
    assert imports_of(ast.parse(source), "room", modules) == modules - {"room"}


def test_an_import_runs_the_packages_above() -> None:
    modules = frozenset({"house.room", "house.room.shelf", "house.room.shelf.book", "house.hall.door"})
    assert with_packages("house.hall.door", {"house.room.shelf.book"}, modules) == modules - {"house.hall.door"}
    assert with_packages("house.room.table", {"house.room.shelf.book"}, modules) == modules - {
        "house.room",
        "house.hall.door",
    }
