"""The words of texts that models count: chosen once, from the train part alone."""

from collections import Counter
from typing import Any

from sklearn.feature_extraction.text import TfidfVectorizer

from apc_automl.data.split import Rows
from apc_automl.data.table import Table
from apc_automl.data.table_schema import Column, ColumnKind
from apc_automl.errors import TableInvalid

MOST_WORDS = 300
LEAST_ROWS = 3
"""A word that fewer rows have tells nothing that holds elsewhere."""
MOST_SHARE = 0.98
LEAST_WORDS = 2


def choose_words(table: Table, train: Rows) -> Table:
    """Return the table with the words of its texts; a text whose rows share no words is left out, and said.

    Raises:
        TableInvalid: no column is left.
    """
    columns: list[Column] = []
    notes: list[str] = []
    for column in table.schema.columns:
        if column.kind is not ColumnKind.TEXT:
            columns.append(column)
            continue
        words = _common_words(table.frame[column.name].iloc[train])
        if len(words) < LEAST_WORDS:
            notes.append(f"column {column.name!r} is left out: its texts share no words")
            continue
        columns.append(column.model_copy(update={"words": words}))
        notes.append(f"column {column.name!r} is text: its {len(words)} most frequent words are counted")
    if not columns:
        raise TableInvalid(f"there is no usable column besides {table.schema.target!r}: {'; '.join(notes)}")
    names = [*(column.name for column in columns), table.schema.target]
    schema = table.schema.model_copy(update={"columns": tuple(columns)})
    return Table(schema, table.frame[names]).noting(*notes)


def _common_words(texts: Any) -> tuple[str, ...]:
    split = TfidfVectorizer().build_analyzer()
    counts = Counter(word for text in texts.dropna() for word in set(split(text)))
    most = MOST_SHARE * len(texts)
    common = [word for word, count in counts.items() if LEAST_ROWS <= count <= most]
    return tuple(sorted(sorted(common, key=lambda word: (-counts[word], word))[:MOST_WORDS]))
