"""Numbers of things in words."""

import pytest

from apc_contracts.text import numbered


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (numbered(0, "packet"), "0 packets"),
        (numbered(1, "packet"), "1 packet"),
        (numbered(1, "entry", "entries"), "1 entry"),
        (numbered(2_000, "entry", "entries"), "2,000 entries"),
    ],
)
def test_a_number_has_its_noun(said: str, wanted: str) -> None:
    assert said == wanted
