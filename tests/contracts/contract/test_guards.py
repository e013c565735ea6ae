"""Guards: CEL over flat facts, memoised, false when anything is missing."""

import subprocess
import sys
from typing import Any

import cel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_contracts.contract.file import FactType
from apc_contracts.contract.machines import Guard, conjunction, identifiers, macro_variables, refuse_long_runs
from apc_contracts.errors import ContractInvalid

TYPES: dict[str, FactType] = {"score": "float", "limit": "float", "is_open": "bool", "mode": "string"}


def guard(text: str) -> Guard:
    return Guard(text, "here", TYPES)


@pytest.mark.parametrize(
    ("text", "facts", "holds"),
    [
        ("score > limit * 1.2", {"score": 0.9, "limit": 0.6}, True),
        ("score > limit * 1.2", {"score": 0.72, "limit": 0.6}, False),
        ("score > limit * 1.2", {"score": 1, "limit": 0}, True),
        ("score > limit", {"score": 1.0}, False),
        ("score > 0.0 || is_open", {"score": 1.0}, False),
        ("score > 0.0", {"score": None}, False),
        ("score > 0.0", {"score": True}, False),
        ("score > 0.0", {"score": "1"}, False),
        ("is_open", {"is_open": 1}, False),
        ("is_open", {"is_open": True}, True),
        ("mode == 'A'", {"mode": 1}, False),
        ('mode in ["A", "B"]', {"mode": "B", "unrelated": object()}, True),
        ("[1.0, 2.0].exists(x, x == score)", {"score": 2}, True),
        ("true", {}, True),
        ("score", {"score": 1.0}, False),
        ("score * 2 > 1.0", {"score": 1.0}, False),
    ],
)
def test_holds(text: str, facts: dict[str, Any], holds: bool) -> None:
    assert guard(text).holds(facts) is holds


@given(
    score=st.floats(0, 1),
    # A guard takes -0.0 for 0.0, which CEL by itself does not: 1.0 / limit tells them apart.
    limit=st.floats(-1, 1).map(lambda limit: limit + 0.0),
    is_open=st.booleans(),
    mode=st.sampled_from(["A", "B", ""]),
)
def test_the_memo_answers_as_cel_does(score: float, limit: float, is_open: bool, mode: str) -> None:
    facts = {"score": score, "limit": limit, "is_open": is_open, "mode": mode}
    # A guard reads -0.0 as 0.0, which is the same number; CEL divides by the one otherwise than by the other.
    expected = cel.compile(_MEMOISED.text).execute(facts | {"limit": limit + 0.0}) is True

    assert _MEMOISED.holds(facts) is expected
    assert _MEMOISED.holds(facts) is expected


_MEMOISED = guard("(score > limit * 1.2 && is_open) || mode == 'A' || 1.0 / limit < -5.0")


@given(
    st.lists(st.sampled_from(["score > 0.5", "is_open", "mode == 'A'", "limit < score"]), max_size=4), st.floats(0, 1)
)
def test_a_conjunction_holds_when_all_do(texts: list[str], score: float) -> None:
    guards = [guard(text) for text in texts]
    facts = {"score": score, "limit": 0.3, "is_open": True, "mode": "A"}

    assert conjunction(guards, "here", TYPES).holds(facts) is all(one.holds(facts) for one in guards)


@pytest.mark.parametrize(
    "text",
    [
        "[1.0].map(a, [2.0].map(b, a * b)).size() > 0",
        "[1.0].all(a, [[2.0]].exists (b, b[0] > a))",
        "[[1.0].filter(x, x > score)].exists_one(y, y.exists(z, z > limit))",
        "[1.0].existsOne(a, [1.0].all((b), b > a))",
    ],
)
def test_nested_macros_are_refused(text: str) -> None:
    with pytest.raises(ContractInvalid, match="nests one macro"):
        refuse_long_runs(text, "here")


@pytest.mark.parametrize(
    "text",
    ["[1.0].all(a, a > score) && [2.0].exists(b, b > score)", 'mode == ".all(a, [1].all(b, b))"', "(score) > 0.0"],
)
def test_macros_side_by_side_are_not(text: str) -> None:
    guard(text).check()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("score >", "does not compile"),
        ("moon > 1.0", "unknown fact 'moon'"),
        ("dance(score)", "unknown function 'dance'"),
        ("score + 1 > 2.0", "numbers are floats"),
        ("score", "not a boolean"),
        ("[1.0].dance(score)", "unknown function 'dance'"),
        ("[1.0][5] == score", "cannot be evaluated"),
        ("{'a': 1.0}['b'] == score", "cannot be evaluated"),
        ("1 / 0 == 1", "cannot be evaluated"),
        ("int(score * 1e300) == 1", "cannot be evaluated"),
        ("is_open ? score > 1.0 : score > limit * 2", "numbers are floats"),
    ],
)
def test_unusable(text: str, why: str) -> None:
    with pytest.raises(ContractInvalid, match=why) as caught:
        guard(text).check()
    assert caught.value.place == "here"


def test_an_index_beyond_a_list_is_not_satisfied() -> None:
    one = guard("[true, true][int(score)]")
    one.check()
    assert one.holds({"score": 1.0})
    assert not one.holds({"score": 7.0})


def test_names_are_read_from_the_text() -> None:
    text = "[1.0].exists(x, x > score) && mode != 'limit' && is_open"

    assert guard(text).names == ("is_open", "mode", "score")
    assert macro_variables(text) == {"x"}
    assert identifiers("mode == 'limit'") == {"mode"}


def test_a_worker_starts_without_cel() -> None:
    code = "import sys, apc_contracts.admission as a; from apc_contracts import load_contract; load_contract()"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'cel' not in sys.modules"], check=True)
