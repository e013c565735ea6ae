"""The changelog of the next release: entries of one line, by theme."""

from .test_links import ROOT

UNRELEASED = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
LONGEST = 170


def test_an_entry_is_one_line() -> None:
    lines = [line for line in UNRELEASED.splitlines()[1:] if line]
    assert [line for line in lines if not line.startswith(("- ", "### ")) or len(line) > LONGEST] == []


def test_each_theme_has_entries() -> None:
    themes = UNRELEASED.split("\n### ")[1:]
    assert len(themes) > 5
    assert [theme.splitlines()[0] for theme in themes if "\n- " not in theme] == []
