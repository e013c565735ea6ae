"""The README of each component names every folder of its package, and no file that is not there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(folder for folder in ROOT.glob("*/apc_*") if (folder / "__init__.py").is_file())
PLACE = re.compile(r"`(?P<place>[\w./-]*/(?:\w+\.py)?|\w+\.py)`")


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_readme_has_the_parts_of_its_package(package: Path) -> None:
    readme = next(file for file in (package / "README.md", package.parent / "README.md") if file.is_file())
    named = _places(readme.read_text(encoding="utf-8"))
    missing = sorted(place for place in named if not _is_there(package, place))
    assert missing == [], f"{readme} names what is not there"
    folders = {one.parent.name for one in package.glob("*/__init__.py")}
    shown = {place.removeprefix(f"{package.name}/").partition("/")[0] for place in named}
    assert sorted(folders - shown) == [], f"{readme} leaves out folders"


def test_places_are_found() -> None:
    assert _places("| `a.py`, `b/` | `c/d.py`; outside a table `e.py` |\n`f.py`") == {"a.py", "b/", "c/d.py", "e.py"}


def _is_there(package: Path, place: str) -> bool:
    """Return whether a place is below the component, the repository or a folder of the package."""
    return any((base / place).exists() for base in (package.parent, ROOT)) or any(package.rglob(place))


def _places(text: str) -> set[str]:
    """Return the files and folders that the tables of a page name."""
    return {place for line in text.splitlines() if line.startswith("|") for place in PLACE.findall(line)}
