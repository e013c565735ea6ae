"""The words of docs/glossary.md are in use, and its retired words are not."""

import re
from pathlib import Path

from tests.support.retired_names import retired_names, retired_phrases

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
WORD = re.compile(r"^\| (?P<word>[\w -]+) \| [^|]+ \|$", re.MULTILINE)


def _tables() -> list[list[str]]:
    """Return the words of each table: those of the bus, and those of research."""
    tables = re.split(r"^## ", GLOSSARY.partition("## Retired words")[0], flags=re.MULTILINE)
    return [[word for word in WORD.findall(table) if word not in ("word", "---")] for table in tables]


def _words() -> list[str]:
    return [word for table in _tables() for word in table]


def test_every_word_is_in_use() -> None:
    files = [*ROOT.glob("*/apc_*/**/*.py"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("migrations/**/*.sql")]
    text = " ".join(file.read_text(encoding="utf-8") for file in files if file.name != "glossary.md").lower()
    normal = re.sub(r"[\s_-]+", " ", text)
    assert [word for word in _words() if re.sub("[ -]", " ", word.lower()) not in normal] == []


def test_the_words_are_in_order() -> None:
    assert len(_words()) == len(set(_words())) > 50
    assert len(_tables()) == 2
    for table in _tables():
        assert [word.lower() for word in table] == sorted(word.lower() for word in table)


def test_no_retired_word_names_anything() -> None:
    assert retired_names() == set()


def test_no_retired_phrase_is_in_any_text() -> None:
    """Docs, docstrings, comments, errors, names of tests and SQL; words of names count as words of a sentence."""
    found = {str(file.relative_to(ROOT)): phrases for file in _texts() if (phrases := retired_phrases(file))}
    assert found == {}


def _texts() -> list[Path]:
    shipped = [*ROOT.glob("*/apc_*/**/*.py"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md"), ROOT / "README.md"]
    others = [file for folder in ("tests", "benchmarks", "examples") for file in (ROOT / folder).rglob("*.py")]
    others += [file for kind in ("*.py", "*.sql") for file in (ROOT / "migrations").rglob(kind)]
    return [file for file in (*shipped, *others) if file.stem not in ("glossary", "retired_names")]
