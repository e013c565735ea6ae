"""What a person fills in: the schema of a model and the model agree, and what cannot be asked for is said."""

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from math import isfinite
from typing import Annotated, Any, Literal
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as some
from pydantic import BaseModel, ConfigDict, Field, RootModel, ValidationError, create_model

from apc_agents import AgentError
from apc_agents.typed import answer_schema_of
from apc_contracts.answers import MAX_ANSWER_SCHEMA_BYTES, check_answer_schema
from apc_contracts.errors import SchemaUnusable

create: Any = create_model


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    street: str
    number: int | None = None


KINDS: tuple[Any, ...] = (
    str,
    Annotated[str, Field(min_length=1, max_length=5)],
    int,
    Annotated[int, Field(ge=-3, lt=9)],
    float,
    bool,
    Decimal,
    Annotated[Decimal, Field(ge=0, decimal_places=2)],
    Annotated[Decimal, Field(gt=-1, le=Decimal("9.5"), max_digits=5, decimal_places=3)],
    date,
    datetime,
    time,
    timedelta,
    UUID,
    Colour,
    Literal["a", "b"],
    list[str],
    list[date],
    Place,
    dict[str, int],
)
HARD = (
    *("", "1", "1.50", "-0", ".5", "1e3", "NaN", "12.3456", "red", "12345678", "01890000-0000-7000-8000-000000000000"),
    *("2026-02-28", "2026-02-31", "2026-02-28T10:00:00Z", "2026-02-28T24:00:00Z", "0000-01-01", "10:30", "P1D", "P1Y2"),
)

scalars = some.one_of(
    some.none(),
    some.booleans(),
    some.integers(-(2**53) + 1, 2**53 - 1),
    some.floats(allow_nan=False, allow_infinity=False, width=32),
    some.text(max_size=6),
    some.sampled_from(HARD),
    some.dates().map(str),
    some.datetimes().map(lambda at: at.isoformat()),
    some.decimals(-20, 20, places=2).map(str),
)
values = some.one_of(
    scalars,
    some.lists(scalars, max_size=3),
    some.fixed_dictionaries({"street": scalars}, optional={"number": scalars, "further": scalars}),
)
fields = some.lists(some.tuples(some.sampled_from(KINDS), some.booleans()), min_size=1, max_size=4)


def model_of(kinds: list[tuple[Any, bool]]) -> type[BaseModel]:
    """Return a model with a field of each kind; True = it may be left out, or be null."""
    given_fields: dict[str, Any] = {
        f"f{number}": (kind | None, None) if is_optional else (kind, ...)
        for number, (kind, is_optional) in enumerate(kinds)
    }
    made: type[BaseModel] = create("Form", **given_fields)
    return made


@given(fields, some.data())
def test_what_the_schema_takes_the_model_takes(kinds: list[tuple[Any, bool]], data: some.DataObject) -> None:
    model = model_of(kinds)
    schema = answer_schema_of(model)
    names = some.sampled_from([*model.model_fields, "further"])
    content = data.draw(some.dictionaries(names, values, max_size=5))
    if schema.fault(content, "answer") is None:
        model.model_validate_json(orjson.dumps(content), by_alias=True, by_name=False)


@given(fields, some.data())
def test_what_the_model_says_the_schema_takes(kinds: list[tuple[Any, bool]], data: some.DataObject) -> None:
    model = model_of(kinds)
    content = data.draw(some.fixed_dictionaries(dict.fromkeys(model.model_fields, values)))
    try:
        made = model.model_validate_json(orjson.dumps(content))
    except ValidationError:
        return
    said = made.model_dump(mode="json", by_alias=True)
    fault = answer_schema_of(model).fault(said, "answer")
    assert fault is None or _is_beyond_the_form(said), fault


def _is_beyond_the_form(said: dict[str, Any]) -> bool:
    """Return whether nobody writes a value into a form: a decimal with an exponent, a year below 1000, no number."""
    all_said = [one for value in said.values() for one in (value if isinstance(value, list) else [value])]
    texts = [one for one in all_said if isinstance(one, str)]
    is_odd_text = any("E" in one or one.startswith("0") or len(one) > 60 for one in texts)
    return is_odd_text or any(isinstance(one, float) and not isfinite(one) for one in all_said)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: RootModel[int], "takes a pydantic BaseModel with fields"),
        (lambda: dict, "takes a pydantic BaseModel with fields"),
        (lambda: create("Odd", at=(Callable[[], int], ...)), "has no JSON Schema"),
        (
            lambda: create("Wide", **{f"f{one}": (str, "x" * 90) for one in range(90)}),
            "bytes, the limit is 8,192",
        ),
        (lambda: create("Sharp", at=(Annotated[str, Field(pattern=r"^\pL{60}$")], ...)), "regex"),
    ],
)
def test_what_nobody_can_fill_in_is_said(made: Callable[[], Any], said: str) -> None:
    with pytest.raises(AgentError, match=said):
        answer_schema_of(made())


def test_titles_and_descriptions_are_no_other_schema() -> None:
    plain = create("Plain", sum=(int, ...))
    told = create("Told", sum=(int, Field(title="The sum", description="In cents.")))
    other = create("Other", sum=(int, Field(ge=1)))
    assert answer_schema_of(plain).hash == answer_schema_of(told).hash != answer_schema_of(other).hash


def test_a_model_decides_whether_further_fields_are_taken() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")
        sum: int

    assert answer_schema_of(Open).fault({"sum": 1, "more": 2}, "answer") is None


@pytest.mark.parametrize(
    "document",
    [
        {"enum": ["x" * MAX_ANSWER_SCHEMA_BYTES]},
        {"properties": {f"f{one}": {"type": "string"} for one in range(301)}},
        {"properties": {f"f{one}": {"pattern": "^a$"} for one in range(17)}},
        {"patternProperties": {"a" * 513: {}}},
        {"properties": {"a": {"$ref": "https://example.org/schema"}}},
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"$defs": {f"a{one}": {"allOf": [{"$ref": f"#/$defs/a{one + 1}"}] * 2} for one in range(40)} | {"a40": {}}}
        | {"$ref": "#/$defs/a0"},
    ],
)
def test_a_schema_that_costs_too_much_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(SchemaUnusable):
        check_answer_schema(document)
