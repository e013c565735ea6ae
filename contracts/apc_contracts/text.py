"""Texts for people: numbers with their nouns, and foreign text made harmless for a terminal."""

import re
from collections.abc import Sequence


def numbered(count: int, one: str, many: str | None = None) -> str:
    """Return the number with the noun in singular or plural; the plural without `many` is `one` and an s."""
    return f"1 {one}" if count == 1 else f"{count:,} {many or one + 's'}"


def some_of(names: Sequence[str], most: int = 10) -> str:
    """Return the names with commas; of more than `most` the first ones, and how many others there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {numbered(len(names) - most, 'other')}"


# Make foreign text harmless for a terminal: texts of agents, models and files may contain escape sequences.

_STRING = r"[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
"""The content and the end of a control string (OSC, DCS, SOS, PM, APC): ECMA-48, section 5.6."""
_SEQUENCES = re.compile(
    rf"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f]){_STRING}|\x1b[ -/]*[0-~]"
)
_BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Marks, embeddings, overrides and isolates of the bidirectional algorithm: they show text in another order."""
_SEPARATORS = "\u2028\u2029"
_UNSAFE = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}{_SEPARATORS}\ufeff]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_UNSAFE_IN_JSON = re.compile(f"[\x7f-\x9f{_BIDI}{_SEPARATORS}\ufeff]")


def printable(text: str) -> str:
    """Return the text without escape sequences, control characters and bidirectional marks.

    Newlines and tabs stay. Lone surrogates, which cannot be encoded, become question marks.
    """
    return _SURROGATES.sub("?", _UNSAFE.sub("", _SEQUENCES.sub("", text)))


def one_line(text: str) -> str:
    """Return the text as `printable` does, with every run of white space as one space."""
    return " ".join(printable(text).split())


def printable_json(document: str) -> str:
    """Return a JSON document in which no character acts on a terminal; its value is the same.

    JSON itself escapes everything below U+0020; the rest, which can only be inside strings, is escaped here.
    """
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document)
