"""Text of agents does nothing to a terminal."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_contracts.text import one_line, printable, printable_json

ACTS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.mark.parametrize(
    ("hostile", "left"),
    [
        ("a\x1b[31mred\x1b[0m", "ared"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;https://evil.example\x1b\\a link\x1b]8;;\x1b\\", "a link"),
        ("\x1b]52;c;cm0gLXJm\x07", ""),
        ("\x1bP1$r0m\x1b\\dcs", "dcs"),
        ("\x9b2Jcsi of one byte\x9d0;title\x9c", "csi of one byte"),
        ("\x1bcreset\x1b7\x1b(0", "reset"),
        ("\x1b]0;never ended, and what follows", "0;never ended, and what follows"),
        ("over\rwritten\b\x7f\x00", "overwritten"),
        ("\u202egnp.exe\u202c \u2066x\u2069", "gnp.exe x"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("half \ud83d of it", "half ? of it"),
        ("été 漢字 🙂", "été 漢字 🙂"),
    ],
)
def test_what_is_left(hostile: str, left: str) -> None:
    assert printable(hostile) == left


@given(st.text(alphabet=st.sampled_from("\x1b[]P;0m\x07\\\x9b\x9d\x9cab\n\t\u202e\ud800 ")))
def test_nothing_that_acts_is_left_and_twice_is_once(text: str) -> None:
    once = printable(text)
    assert not ACTS.search(once)
    assert printable(once) == once


@given(st.text())
def test_one_line_is_one(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_json_keeps_its_value(text: str) -> None:
    document = printable_json(json.dumps({"said": text}, ensure_ascii=False))
    assert json.loads(document) == {"said": text}
    assert not ACTS.search(document)
