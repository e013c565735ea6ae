"""References are found and substituted as data."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from apc_minds.actions import ReferenceUnknown
from apc_minds.tasks.references import lookup, references_in, substitute

TEXT = st.text(st.characters(codec="utf-8"), max_size=10)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
NAMES = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)


def put(
    value: JsonValue, variables: dict[str, JsonValue] | None = None, results: dict[str, JsonValue] | None = None
) -> JsonValue:
    substituted: JsonValue = substitute(value, lookup(variables or {}, results or {}))
    return substituted


@given(PLAIN)
def test_what_holds_no_reference_stays_as_it_is(value: JsonValue) -> None:
    if b"${{" not in orjson.dumps(value):
        assert put(value) == value


@given(NAMES, PLAIN)
def test_a_whole_reference_becomes_the_value_with_its_type(name: str, value: JsonValue) -> None:
    assert put("${{variables." + name + "}}", {name: value}) == value
    assert put(["${{ results." + name + " }}"], results={name: value}) == [value]


@given(NAMES, st.lists(NAMES, min_size=1, max_size=4), PLAIN)
def test_a_path_leads_to_what_it_names(name: str, path: list[str], value: JsonValue) -> None:
    tree = value
    for step in reversed(path):
        tree = {step: [tree]}
    steps = ".0.".join(path)
    assert put(f"${{{{results.{name}.{steps}.0}}}}", results={name: tree}) == value


@given(NAMES, TEXT, TEXT, TEXT)
def test_a_text_is_inserted_and_never_looked_at_again(name: str, before: str, value: str, after: str) -> None:
    if "$" in before + after:
        return
    hostile = f"${{{{variables.{name}}}}}{value}${{{{results.secret}}}}"
    assert put(f"{before}${{{{variables.{name}}}}}{after}", {name: hostile}) == f"{before}{hostile}{after}"


def test_other_values_are_inserted_as_json() -> None:
    value: JsonValue = {"a": [1, None]}
    assert put("x=${{variables.v}};${{variables.t}}", {"v": value, "t": True}) == 'x={"a":[1,null]};true'


def test_the_mark_itself_can_be_written() -> None:
    assert put("$${{ github.sha }}") == "${{ github.sha }}"
    assert put("$${{variables.a}} ${{variables.a}}", {"a": 1}) == "${{variables.a}} 1"


def test_nothing_is_evaluated() -> None:
    for expression in ("1 + 1", "variables", "variables.a + variables.b", "__import__('os')", "variables['a']", ""):
        with pytest.raises(ReferenceUnknown, match=r"write \$\{\{variables.name\}\}"):
            put(f"${{{{{expression}}}}}", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("${{variables.b}}", "no such variable; known are a"),
        ("${{results.b}}", "no such action; known are r"),
        ("${{results.r.x}}", "results.r has no 'x'; its names are list"),
        ("${{results.r.list.2}}", "a list of 2"),
        ("${{results.r.list.-1}}", "a list of 2"),
        ("${{results.r.list.first}}", "a list of 2"),
        ("${{variables.a.b}}", "variables.a is a int"),
        ("${{variables.a", "write"),
        ("${{variables.}}", "write"),
        ("${{variables.a b}}", "write"),
        ("${{env.a}}", "write"),
        ("${{results.r.__class__}}", "no '__class__'"),
    ],
)
def test_a_reference_that_points_nowhere_is_an_error_that_names_it(text: str, words: str) -> None:
    with pytest.raises(ReferenceUnknown) as error:
        put({"deep": [text]}, {"a": 1}, {"r": {"list": [1, 2]}})
    assert words in str(error.value)
    assert error.value.reference in text


def test_references_are_found_at_every_depth() -> None:
    value: JsonValue = {"a": ["${{variables.x}} ${{results.r.p.0}}", {"b": "$${{variables.y}}"}], "c": 1}
    assert [str(found) for found in references_in(value)] == ["variables.x", "results.r.p.0"]
