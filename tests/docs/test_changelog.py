"""The changelog: entries of one line, those of the next release by theme."""

from .test_links import ROOT

RELEASES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
LONGEST = 170
FIRST = "The first release."


def test_an_entry_is_one_line() -> None:
    lines = [line for release in RELEASES for line in release.splitlines()[1:] if line and line != FIRST]
    assert [line for line in lines if not line.startswith(("- ", "### ")) or len(line) > LONGEST] == []


def test_each_theme_has_entries() -> None:
    themes = RELEASES[0].split("\n### ")[1:]
    assert len(themes) > 5
    assert [theme.splitlines()[0] for theme in themes if "\n- " not in theme] == []
