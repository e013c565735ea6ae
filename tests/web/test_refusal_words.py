"""The words of refusals are those of their page."""

import re
from pathlib import Path

from apc_contracts import load_contract
from apc_web.verdict_words import CAUSES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "refusals.md"
_ROW = re.compile(r"^\| `([A-Z_]+)` \| (.*) \| .* \|$", re.MULTILINE)


def test_every_refusal_has_the_words_of_its_page() -> None:
    rows = {code: _plain(cause) for code, cause in _ROW.findall(PAGE.read_text())}

    assert rows == CAUSES
    assert set(CAUSES) >= set(load_contract().refusals.order)


def _plain(text: str) -> str:
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text).replace("`", "")
