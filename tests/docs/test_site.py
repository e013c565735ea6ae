"""The documentation site has every page."""

from pathlib import Path
from typing import Any

import yaml
from tests.support.reference.python_names import PACKAGES
from tests.support.site import API, index_for_models, page_of_the_site, pages, with_script

ROOT = Path(__file__).parents[2]


def _navigation(entries: Any) -> list[str]:
    if isinstance(entries, str):
        return [entries]
    parts = entries.values() if isinstance(entries, dict) else entries
    return [page for part in parts for page in _navigation(part)]


def _configuration() -> dict[str, Any]:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    plain = text.replace("!!python/name:", "")
    loaded: dict[str, Any] = yaml.safe_load(plain)
    return loaded


def test_every_page_of_the_documentation_is_in_the_navigation() -> None:
    listed = set(_navigation(_configuration()["nav"]))
    documentation = {str(page) for page in pages() if page.parts[0] == "docs"}
    decisions = {page for page in documentation if page.startswith("docs/decisions/0")}
    assert documentation - decisions - listed == set()
    assert {page for page in listed if not page.startswith("api/") and not (ROOT / page).is_file()} == set()


def test_the_index_for_models_lists_every_page() -> None:
    index = index_for_models(pages())
    assert [page for page in pages() if f"({page})" not in index] == []


def test_the_api_has_a_page_for_each_package_whose_names_are_listed() -> None:
    assert set(PACKAGES) <= set(API)
    options = _configuration()["plugins"][1]["mkdocstrings"]["handlers"]["python"]["options"]
    assert options["inherited_members"] is True, "ctx.ask and Agent.every come from base classes without a page"


def test_pictures_come_along_as_they_are() -> None:
    assert "](docs/images/overview.svg)" in page_of_the_site(Path("README.md"), set())


def test_a_page_with_diagrams_loads_their_script_from_the_site() -> None:
    text = "# Life\n\n```mermaid\nflowchart LR\n```\n"
    assert '<script src="../../assets/mermaid.min.js">' in with_script(Path("docs/explanation/packet-life.md"), text)
    assert '<script src="assets/mermaid.min.js">' in with_script(Path("README.md"), text)
    assert with_script(Path("README.md"), "# Life\n") == "# Life\n"
    assert _configuration()["theme"]["font"] is False, "the theme would load fonts from another site"
