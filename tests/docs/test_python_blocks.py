"""Every Python block in Markdown compiles, and no paragraph is indented so far that it renders as code."""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from .test_links import ROOT, pages

BLOCK = re.compile(r"^(?P<indent> *)```(?:python|py)\b[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^ *```.*?^ *```[^\n]*\n", re.DOTALL | re.MULTILINE)
PARAGRAPH_AS_CODE = re.compile(r"\n\n {4,}(?P<line>\w[^\n]*)")


def broken_blocks(page: Path) -> Iterator[str]:
    """Yield the place of each Python block that does not compile. A block may await at its top level."""
    text = page.read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start("code"))
        code = textwrap.dedent(block["code"])
        try:
            compile(code, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError as error:
            yield f"line {first + (error.lineno or 1)}: {error.msg}"


def test_every_python_block_compiles() -> None:
    broken = {str(page.relative_to(ROOT)): found for page in pages() if (found := list(broken_blocks(page)))}
    assert not broken


def test_no_paragraph_renders_as_code() -> None:
    found = [
        f"{page.relative_to(ROOT)}: {line['line']}"
        for page in pages()
        for line in PARAGRAPH_AS_CODE.finditer(FENCED.sub("\n", page.read_text(encoding="utf-8")))
    ]
    assert not found
