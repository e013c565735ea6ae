"""Every link in Markdown, and every page that the code cites, leads somewhere."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?://|mailto:)(?P<page>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
CITATION = re.compile(r"\b(?P<page>docs/[\w/-]+\.md)(?:,? sections? (?P<sections>[0-9]+(?:(?:, | and | to )[0-9]+)*))?")
ANCHOR = re.compile(r"\b(?P<page>docs/[\w/-]+\.md)#(?P<anchor>[\w-]+)")
SOURCES = {".py", ".sql", ".sh", ".yml", ".toml", ".conf", ".env", ".mjs"}
ITSELF = Path(__file__)
RETIRED = re.compile(r"(?<![\w/.-])(?:contract|architecture|agents|quality|[a-z]+-facts)\.md\b|\bthe seed's\b")


def tracked() -> list[Path]:
    """Return the files of the repository, or of the folder where there is no repository."""
    run = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        pytest.skip("needs a git checkout")
    files = [ROOT / name for name in run.stdout.splitlines()]
    return [file for file in files if file.is_file() and file != ITSELF]


def pages() -> list[Path]:
    """Return the Markdown files."""
    return [file for file in tracked() if file.suffix == ".md"]


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors of the headings of a page, as Markdown renderers derive them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found: dict[str, int] = {}
    result = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-")
        result.add(name if name not in found else f"{name}-{found[name]}")
        found[name] = found.get(name, 0) + 1
    return frozenset(result)


def broken_links(page: Path) -> Iterator[str]:
    """Yield the links of a page that lead nowhere."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in LINK.finditer(text):
        target = (page.parent / link["page"]).resolve() if link["page"] else page
        if not target.exists():
            yield link[0]
        elif link["anchor"] and target.suffix == ".md" and link["anchor"] not in anchors(target):
            yield link[0]


def test_every_link_leads_somewhere() -> None:
    broken = {str(page.relative_to(ROOT)): found for page in pages() if (found := list(broken_links(page)))}
    assert broken == {}


def wrong_citations(text: str) -> Iterator[str]:
    """Yield the pages, sections and anchors that a text cites and that do not exist."""
    if "docs/" not in text:
        return
    joined = " ".join(line.strip().removeprefix("#").removeprefix("--").strip() for line in text.splitlines())
    for cited in CITATION.finditer(joined):
        page = ROOT / cited["page"]
        if not page.is_file():
            yield cited[0]
        elif cited["sections"] and not _has_sections(page, re.findall(r"\d+", cited["sections"])):
            yield cited[0]
    for cited in ANCHOR.finditer(joined):
        if (ROOT / cited["page"]).is_file() and cited["anchor"] not in anchors(ROOT / cited["page"]):
            yield cited[0]


def _has_sections(page: Path, sections: list[str]) -> bool:
    if "conformance" in page.parts:
        return True
    numbers = re.findall(r"^## (\d+)\. ", page.read_text(encoding="utf-8"), re.MULTILINE)
    return set(sections) <= set(numbers)


def test_every_page_that_the_code_cites_exists() -> None:
    sources = [file for file in tracked() if file.suffix in SOURCES or file.name == "Makefile"]
    wrong = {
        str(file.relative_to(ROOT)): found
        for file in sources
        if (found := list(wrong_citations(file.read_text(encoding="utf-8"))))
    }
    assert wrong == {}


def test_nothing_cites_a_document_that_does_not_ship() -> None:
    files = [file for file in tracked() if file.suffix in SOURCES | {".md"} and "specification" not in file.parts]
    wrong = {
        str(file.relative_to(ROOT)): found
        for file in files
        if (found := RETIRED.findall(re.sub(r"\]\([^)]*\)|\[[^\]]*\]", "", file.read_text(encoding="utf-8"))))
    }
    assert wrong == {}


def test_a_wrong_citation_is_found() -> None:
    assert list(wrong_citations("docs/specification/contract.md section 99")) != []
    assert list(wrong_citations("docs/specification/contract.md\nsection 12")) == []
    assert list(wrong_citations("docs/no-such-page.md")) == ["docs/no-such-page.md"]
