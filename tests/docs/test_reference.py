"""The generated tables of the documentation say what the code says."""

import re
from pathlib import Path

import pytest
from tests.support.reference.contract import refusal_order
from tests.support.reference.pages import DOCS, TABLES, filled, pages_with_tables, tables_of

from apc_contracts.judging.verdict import REMEDIES


@pytest.mark.parametrize("page", pages_with_tables(), ids=lambda page: str(page.relative_to(DOCS)))
def test_the_tables_of_a_page_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == filled(text), "run `make reference`"


def test_every_table_stands_in_one_page() -> None:
    used = [name for page in pages_with_tables() for name in tables_of(page.read_text(encoding="utf-8"))]
    assert sorted(used) == sorted(TABLES)


def test_a_block_ends_at_its_own_end() -> None:
    text = "<!-- generated: contract drift -->\n<!-- end -->\nkept\n<!-- generated: contract drift -->\n<!-- end -->\n"
    assert "kept" in filled(text)
    assert filled(filled(text)) == filled(text)


def test_every_refusal_code_has_a_cause_and_a_remedy() -> None:
    page = (DOCS / "reference/refusals.md").read_text(encoding="utf-8")
    codes = re.findall(r"^\| `([A-Z_]+)` \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)
    assert codes == list(dict.fromkeys(refusal_order()))


def test_the_remedy_of_what_cannot_be_read_speaks_of_body_and_headers() -> None:
    remedy = REMEDIES["MALFORMED"]
    assert "the body with a JCS library" in remedy and "properties and headers by" in remedy


def test_a_log_line_and_the_page_name_the_same_remedy() -> None:
    page = (DOCS / "reference/refusals.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z_]+)` \| [^|]+ \| ([^|]+) \|$", page, re.MULTILINE)
    assert {code: re.sub(r" \(\[[^]]+\]\([^)]+\)\)", "", remedy) for code, remedy in rows} == REMEDIES
