"""Bounds what an object of Parquet takes to decode, from its footer and page headers alone: nothing is decompressed.

A few kilobytes of Parquet may say that they are gigabytes: a value of a dictionary a million times, a page of zeros.
Objects are read once they have the shape in which the archiver writes them, and nothing in them is larger than it may
be. Format: https://parquet.apache.org/docs/file-format/, Thrift's compact protocol.
"""

import os
from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

MOST_AT_ONCE = 768 << 20
"""Bytes of a column in rows that a reader holds at the same time: bodies of 256 KiB, the most that a packet has."""
_ROWS_AT_ONCE = 2_048
_MOST_PAGE_BYTES = 320 << 20
_MOST_DICTIONARY_BYTES = 2 << 20
_MOST_FOOTER_BYTES = 32 << 20
_HEADER_BYTES = (1 << 10, 1 << 20)
_MOST_ELEMENTS = 4_096
"""Elements of a list, for each row of a row group."""
_MAGIC = b"PAR1"
_UNCOMPRESSED, _ZSTD = 0, 6
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_PLAIN, _PLAIN_DICTIONARY, _RLE, _RLE_DICTIONARY = 0, 2, 3, 8
_DEEPEST = 12


class BeyondBounds(ValueError):
    """An object of Parquet says that it holds more than it may, or is not written as the archiver writes."""


class _EndsEarly(BeyondBounds):
    """There are fewer bytes than a struct takes."""


def check_bounds(
    path: Path, types: Mapping[str, str], *, plain: Collection[str], most_rows: int, row_group: int
) -> None:
    """Check the sizes that a file of Parquet names, before anything in it is decoded.

    Args:
        path: the file.
        types: its columns: name -> text, texts, uuid, bytes, int, float, flag or time.
        plain: those that have no dictionary: their values are long.
        most_rows: rows that it may have.
        row_group: rows that a group of them may have.

    Raises:
        BeyondBounds: it may not be read.
        OSError: it cannot be.
    """
    with path.open("rb") as file:
        try:
            _check_file(file.fileno(), types, plain, most_rows, row_group)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise BeyondBounds(f"it is no Parquet as the archiver writes it ({type(error).__name__})") from None


def _check_file(file: int, types: Mapping[str, str], plain: Collection[str], most_rows: int, row_group: int) -> None:
    end = os.fstat(file).st_size - 8
    if end < len(_MAGIC) or os.pread(file, 4, 0) != _MAGIC or os.pread(file, 4, end + 4) != _MAGIC:
        raise BeyondBounds("it is no Parquet")
    footer = int.from_bytes(os.pread(file, 4, end), "little")
    if not 0 < footer <= min(end - len(_MAGIC), _MOST_FOOTER_BYTES):
        raise BeyondBounds(f"it is no Parquet: a footer of {footer} bytes")
    described = _Thrift(os.pread(file, footer, end - footer)).struct()
    groups = described[4]
    rows = [group[3] for group in groups]
    if described[3] != sum(rows) or any(one < 0 for one in rows):
        raise BeyondBounds("its row groups are not its rows")
    if sum(rows) > most_rows:
        raise BeyondBounds(f"{sum(rows)} rows are more than the segment has entries")
    if max(rows, default=0) > row_group:
        raise BeyondBounds(f"a row group has {max(rows)} rows, and none has more than {row_group}")
    at = len(_MAGIC)
    for group, count in zip(groups, rows, strict=True):
        chunks = group[1]
        if len(chunks) != len(types):
            raise BeyondBounds("other columns than those of its kind")
        for chunk, (name, kind) in zip(chunks, types.items(), strict=True):
            is_plain = name in plain or kind not in ("text", "texts")
            at = _Column(file, name, kind, count, is_plain=is_plain).check(chunk, at, end - footer)
    if at != end - footer:
        raise BeyondBounds("there are bytes in it that are of no column")


class _Column:
    """The pages of a column in a row group, which stand one behind the other.

    Args:
        data: the file.
        name: of the column.
        kind: what it holds.
        rows: of the row group.
        is_plain: it has no dictionary.
    """

    def __init__(self, file: int, name: str, kind: str, rows: int, *, is_plain: bool) -> None:
        self._file, self._name, self._kind, self._rows = file, name, kind, rows
        self._is_plain = is_plain
        self._has_dictionary = False
        self._near: deque[tuple[int, int]] = deque()
        """Values and bytes of the pages that a reader may hold at the same time."""

    def check(self, chunk: Mapping[int, Any], begin: int, end: int) -> int:
        """Compare the pages with what the footer says of them; return where they end, before the footer at `end`."""
        if not chunk.keys() <= {2, 3}:
            self._refuse("it names another file, an index or a key")
        meta = chunk[3]
        path = [part.decode(errors="replace") for part in meta[3]]
        if path != ([self._name, "list", "element"] if self._kind == "texts" else [self._name]):
            raise BeyondBounds("other columns than those of its kind")
        if meta[4] not in (_UNCOMPRESSED, _ZSTD):
            self._refuse(f"it is compressed by codec {meta[4]}")
        values, stored, whole = meta[5], 0, 0
        if min(meta[9], meta.get(11, meta[9])) != begin or begin + meta[7] > end or meta[7] < 0:
            self._refuse("its pages are not where they have to be")
        most = self._rows * _MOST_ELEMENTS if self._kind == "texts" else self._rows
        if not self._rows <= values <= most:
            self._refuse(f"{values} values are not those of {self._rows} rows")
        seen = 0
        while stored < meta[7]:
            count, in_file, decoded = self._page(begin + stored, begin + meta[7], is_first=not stored)
            seen, stored, whole = seen + count, stored + in_file, whole + decoded
        if (seen, stored, whole) != (values, meta[7], meta[6]):
            self._refuse("its pages are not those that the footer tells of")
        return int(begin + stored)

    def _page(self, at: int, end: int, *, is_first: bool) -> tuple[int, int, int]:
        """Return how many values a page has, and its bytes, with the header, in the file and decoded."""
        header, size = self._header(at, end)
        decoded, stored, kind = header[2], header[3], header[1]
        if not 0 <= stored <= end - at - size or decoded < 0:
            self._refuse("a page is longer than its column")
        if kind == _DICTIONARY_PAGE and is_first:
            if self._is_plain:
                self._refuse("it has a dictionary, whose values may stand in any number of rows")
            if decoded > _MOST_DICTIONARY_BYTES or not 0 <= header[7][1] <= decoded or header[7][2] not in (0, 2):
                self._refuse(f"a dictionary of {decoded} bytes is larger than any")
            self._has_dictionary = True
            return 0, size + stored, size + decoded
        if kind != _DATA_PAGE:
            self._refuse(f"a page is of kind {kind}")
        if decoded > _MOST_PAGE_BYTES:
            self._refuse(f"a page of {decoded} bytes is larger than any")
        count, encoding, *levels = (header[5][place] for place in (1, 2, 3, 4))
        known = {_PLAIN, _RLE} if self._kind == "flag" else {_PLAIN}
        if encoding not in (known | ({_PLAIN_DICTIONARY, _RLE_DICTIONARY} if self._has_dictionary else set())):
            self._refuse(f"a page has encoding {encoding}")
        if levels != [_RLE, _RLE] or count < 0:
            self._refuse("a page has levels of another encoding")
        self._hold(count, decoded)
        return count, size + stored, size + decoded

    def _header(self, at: int, end: int) -> tuple[dict[int, Any], int]:
        """Return the header of a page, and its length."""
        for most in _HEADER_BYTES:
            thrift = _Thrift(os.pread(self._file, min(most, end - at), at))
            try:
                return thrift.struct(), thrift.at
            except _EndsEarly:
                if most >= end - at:
                    break
        raise BeyondBounds(f"column {self._name}: a page ends too early")

    def _hold(self, count: int, decoded: int) -> None:
        """Take a page in: the rows that are held together may not be larger than a reader can hold."""
        self._near.append((0 if self._kind == "texts" else count, decoded))
        while sum(count for count, _ in list(self._near)[1:]) >= _ROWS_AT_ONCE:
            self._near.popleft()
        if (total := sum(decoded for _, decoded in self._near)) > MOST_AT_ONCE:
            self._refuse(f"{total} bytes in {_ROWS_AT_ONCE} rows are more than a reader holds")

    def _refuse(self, problem: str) -> None:
        raise BeyondBounds(f"column {self._name}: {problem}")


class _Thrift:
    """Reads structs of Thrift's compact protocol; field -> value, bytes as they are.

    Args:
        data: what begins with one.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._end = len(data)
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the next struct. Raises BeyondBounds."""
        if depth > _DEEPEST:
            raise BeyondBounds("its footer is nested too deep")
        found: dict[int, Any] = {}
        last = 0
        while (head := self._byte()) & 0x0F:
            field = last + (head >> 4) if head >> 4 else self._integer()
            if field <= last:  # fields come in their order, and once
                raise BeyondBounds("its footer names a field twice")
            found[field] = self._value(head & 0x0F, depth)
            last = field
        return found

    def _value(self, kind: int, depth: int, *, is_element: bool = False) -> Any:
        match kind:
            case 1 | 2:
                return self._byte() == 1 if is_element else kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._integer()
            case 7:
                return self._take(8)
            case 8:
                return self._take(self._varint())
            case 9 | 10:
                head = self._byte()
                count = self._varint() if head >> 4 == 15 else head >> 4
                if count > self._end - self.at:
                    raise _EndsEarly("its footer has a list longer than itself")
                return [self._value(head & 0x0F, depth + 1, is_element=True) for _ in range(count)]
            case 12:
                return self.struct(depth + 1)
        raise BeyondBounds(f"its footer has a field of type {kind}")

    def _byte(self) -> int:
        return self._take(1)[0]

    def _take(self, count: int) -> bytes:
        if count > self._end - self.at:
            raise _EndsEarly("its footer ends too early")
        self.at += count
        return self._data[self.at - count : self.at]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            part = self._byte()
            value |= (part & 0x7F) << shift
            if part < 0x80:
                return value
        raise BeyondBounds("its footer has a number without end")

    def _integer(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
