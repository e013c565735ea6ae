"""Bytes that two readers could read differently are refused, with the code of the first rule they break."""

import json

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from apc_contracts import DocumentLimits, PacketRefused
from apc_contracts.wire.strict_json import read_strict_json

BIG = 2**53

MALFORMED = {
    "empty": b"",
    "no json": b"{",
    "trailing comma": b'{"a":1,}',
    "trailing data": b"{} {}",
    "bom": b"\xef\xbb\xbf{}",
    "utf-16": '{"a":1}'.encode("utf-16"),
    "bad utf-8": b'{"a":"\xff"}',
    "overlong utf-8": b'{"a":"\xc0\xaf"}',
    "lone surrogate": rb'{"a":"\ud800"}',
    "lone surrogate in a key": rb'{"\udfff":1}',
    "encoded surrogate": b'{"a":"\xed\xa0\x80"}',
    "nan": b'{"a":NaN}',
    "infinity": b'{"a":-Infinity}',
    "1e999": b'{"a":1e999}',
    "raw nul": b'{"a":"\x00"}',
    "escaped nul": rb'{"a":"\u0000"}',
    "escaped nul in a key": rb'{"\u0000":1}',
    "escaped nul in an array": rb'[["\u0000"]]',
    "2^53": b'{"a":%d}' % BIG,
    "-2^53": b'{"a":[%d]}' % -BIG,
    "10^30": b'{"a":1%s}' % (b"0" * 30),
    "5000 digits": b'{"a":%s}' % (b"9" * 5000),
    "float whose canonical form is a big integer": b'{"a":1e17}',
    "a number that is 0 here and an error elsewhere": b'{"a":1e-20000}',
    "a 0 with an exponent": b'{"a":[0E-1000]}',
    "a number with an exponent of many digits": b'{"a":1e0000000000001}',
    "a number with many digits": b'{"a":0.%s1}' % (b"0" * 1000),
    "2^53 as a float": b'{"a":%d.0}' % BIG,
    "doubled key": b'{"a":1,"a":2}',
    "doubled key, spaced": b'{"a" :1,"a":2}',
    "doubled key, escaped": rb'{"a":1,"\u0061":2}',
    "doubled key, deep": b'{"b":[{"a":1,"c":2,"a":1}]}',
    "doubled key hidden by a string": b'{"a":"\\":","a":1}',
    "single quotes": b"{'a':1}",
    "comment": b"{} // x",
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED)
def test_malformed(body: bytes) -> None:
    with pytest.raises(PacketRefused) as refused:
        read_strict_json(body)
    assert (refused.value.code, refused.value.path) == ("MALFORMED", "$")
    assert ": " in refused.value.message


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b" [1, 2.5, -0.0, 1e21, 1E+300, 5e-324] ",
        b'{"a":%d,"b":%d}' % (BIG - 1, 1 - BIG),
        rb'{"a":"\\u0000"}',
        rb'{"a":"\ud83d\ude00"}',
        rb'{"a\"":1,"b":"\":"}',
        b'{"a" : 1,\n\t"b"\r\n: {"a": ": "}}',
        '"\u00e9 e\u0301"'.encode(),
        b'{"a":"[[[[{{{{"}',
        b'{"a": "1e-20000 %s", "b": [1e-999, 0.%s1]}' % (b"1" * 2000, b"0" * 990),
    ],
)
def test_well_formed(body: bytes) -> None:
    assert read_strict_json(body) == json.loads(body)


@pytest.mark.parametrize(
    ("levels", "is_refused"),
    [(31, False), (32, False), (33, True), (100_000, True)],
)
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_levels(levels: int, is_refused: bool, opening: bytes, closing: bytes) -> None:
    body = opening * levels + b"0" + closing * levels
    limits = DocumentLimits(size_bytes=10**7)
    if is_refused:
        with pytest.raises(PacketRefused, match=r"^TOO_DEEP at \$: more than 32 levels"):
            read_strict_json(body, limits)
    else:
        read_strict_json(body, limits)


def test_brackets_in_strings_and_side_by_side_are_no_levels() -> None:
    strings = [r"[[\"[" * 20, "{" * 100, '\\"[{' * 50]
    body = json.dumps({"strings": strings, "flat": [[]] * 1000}).encode()
    assert read_strict_json(body)["strings"] == strings


def test_levels_are_counted_before_the_syntax_is_read() -> None:
    with pytest.raises(PacketRefused, match=r"^TOO_DEEP"):
        read_strict_json(b"[" * 33 + b"\xff")
    with pytest.raises(PacketRefused, match=r"^MALFORMED"):
        read_strict_json(b'["' + b"[" * 33)


def test_size_comes_first() -> None:
    limits = DocumentLimits()
    assert read_strict_json(b" " * (limits.size_bytes - 2) + b"{}") == {}
    with pytest.raises(PacketRefused, match=r"^TOO_LARGE at \$: 262145 bytes, the limit is 262144"):
        read_strict_json(b"[" * (limits.size_bytes + 1))


def test_nodes_come_last() -> None:
    most = b"[" + b",".join([b"0"] * 19_999) + b"]"
    assert len(read_strict_json(most)) == 19_999
    with pytest.raises(PacketRefused, match=r"^TOO_DEEP at \$: 20001 values"):
        read_strict_json(b"[0," + most[1:])
    with pytest.raises(PacketRefused, match=r"^MALFORMED"):
        read_strict_json(b'[{"a":1,"a":2},' + most[1:])


def test_the_limits_are_the_callers() -> None:
    with pytest.raises(PacketRefused, match=r"^TOO_LARGE"):
        read_strict_json(b"[1]", DocumentLimits(size_bytes=2))
    with pytest.raises(PacketRefused, match=r"^TOO_DEEP"):
        read_strict_json(b"[[]]", DocumentLimits(levels=1))
    with pytest.raises(PacketRefused, match=r"^TOO_DEEP"):
        read_strict_json(b"[1]", DocumentLimits(nodes=1))


def test_many_big_floats_cost_one_second_look() -> None:
    body = b"[" + b",".join([b"1e300"] * 19_000) + b"]"
    assert len(read_strict_json(body)) == 19_000


KEYS = st.sampled_from(["a", "b", '"', "\\", ":", 'x":', "é", "😀", " "])
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8) | KEYS
SPACES = st.sampled_from(["", " ", "\n\t"])


@st.composite
def spelled_objects(draw: st.DrawFn, depth: int = 3) -> str:
    """Objects as a text, with keys doubled at times, spelled in several ways and spaced at will."""
    members = []
    for _ in range(draw(st.integers(0, 4))):
        key = json.dumps(draw(KEYS), ensure_ascii=draw(st.booleans()))
        if draw(st.booleans()):
            key = key.replace("a", "\\u0061")
        value = (
            draw(spelled_objects(depth=depth - 1))
            if depth and draw(st.booleans())
            else json.dumps(draw(TEXTS), ensure_ascii=False)
        )
        members.append(key + draw(SPACES) + ":" + draw(SPACES) + value)
    return "{" + ",".join(members) + "}"


@given(spelled_objects())
def test_doubled_keys_are_found_in_any_spelling(text: str) -> None:
    has_doubled = False

    def see(pairs: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal has_doubled
        has_doubled |= len(dict(pairs)) < len(pairs)
        return dict(pairs)

    tree = json.loads(text, object_pairs_hook=see)
    if has_doubled:
        with pytest.raises(PacketRefused, match="same key twice"):
            read_strict_json(text.encode())
    else:
        assert read_strict_json(text.encode()) == tree


@given(st.binary(max_size=60) | st.text('{}[]",:0123456789.eE+-truefalsn \\u', max_size=60).map(str.encode))
def test_any_bytes_end_in_a_value_or_a_refusal(body: bytes) -> None:
    try:
        tree = read_strict_json(body)
    except PacketRefused:
        return
    canonical = rfc8785.dumps(tree)
    assert read_strict_json(canonical) == tree
