"""Why a file is no table, in words of somebody who has never seen a parser, and what to do about it."""

import re
import stat
from pathlib import Path
from typing import Final

from apc_automl.errors import TableInvalid

_TAR_MARK: Final = slice(257, 262)
_MARKUP: Final = re.compile(r"\s*<(!doctype|html|\?xml)", re.IGNORECASE)
_JSON: Final = re.compile(r"\s*(\[\s*)?\{\s*\"")
_WIDER: Final = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")
_OPEN_QUOTE: Final = re.compile(r"EOF inside string starting at row (\d+)")


def check_file(path: Path) -> None:
    """Raise TableInvalid for what is no file: opening a pipe would wait for its other end."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        why = "there is no file" if isinstance(error, FileNotFoundError) else f"{error.strerror}:"
        raise TableInvalid(f"{why} {path}; --data must name a CSV, Excel or parquet file") from error
    if stat.S_ISDIR(mode):
        raise TableInvalid(f"{path} is a folder; --data must name a CSV, Excel or parquet file in it")
    if not stat.S_ISREG(mode):
        raise TableInvalid(f"{path} is a pipe or a device; write the table to a file and name that with --data")


def check_bytes(data: bytes, path: Path) -> None:
    """Raise TableInvalid for an archive of several files."""
    if data[_TAR_MARK] == b"ustar":
        raise TableInvalid(f"{path} is an archive of files (tar); unpack it and name one of them with --data")


def check_text(text: str, path: Path) -> None:
    """Raise TableInvalid for a text that is none of a table, or that no log can hold."""
    if not text.strip():
        raise TableInvalid(f"{path} is empty; it needs a header line and rows")
    if _MARKUP.match(text):
        raise TableInvalid(f"{path} is a web page or XML; download the table itself, or save it as CSV")
    if _JSON.match(text):
        raise TableInvalid(f"{path} is JSON; save it as CSV")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise TableInvalid(
            f"{path} has a NUL character in line {line}; is the file damaged? Remove it, or save it again"
        )


def reason_of(error: Exception, separator: str) -> str:
    """Return why a text cannot be read as a table, and what would help."""
    why = (str(error).splitlines() or [type(error).__name__])[0]
    wider, quote = _WIDER.search(why), _OPEN_QUOTE.search(why)
    if wider is not None:
        usual, line, fields = wider.groups()
        return (
            f"line {line} has {fields} fields, {usual} are expected; "
            f"put a text that holds {separator} in quotation marks, or name another --separator"
        )
    if quote is not None:
        return f"a quotation mark in row {quote.group(1)} is never closed; close or remove it"
    if "field larger than field limit" in why:
        return "a cell has more than 131,072 characters; is a quotation mark never closed? Shorten it"
    return why
