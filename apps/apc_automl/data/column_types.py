"""What a column of texts is: numbers, dates, categories or text, told from all of its cells and never from a few.

A sign between thousands is taken out only where a whole column is written with it; a number with leading zeros names
something and stays text. The way in which a column is written stays with the model, so that new rows are read by it.
"""

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pandas as pd
from pandas.tseries.api import guess_datetime_format

from apc_automl.data.table_schema import ColumnKind, TableOptions

Values: TypeAlias = "pd.Series[Any]"
Counts: TypeAlias = Mapping[str, int]

MOMENT: Final = "%Y-%m-%dT%H:%M:%S"
"""How dates of a table that holds dates, not their texts, are written."""
DATES: Final = ("datetime", "datetime64", "date")
MISSING: Final = frozenset(
    "na n/a n.a. #n/a nan null nil none - -- — . ? n.v. k.a. missing (null) (none) #null! #div/0! #value! #num!".split()
)
"""In a column of numbers or dates these say that there is none; in a column of texts they are texts."""
TRUTHS: Final = {"true": "1", "false": "0"}
TRUTH: Final = "true/false"
"""The unit of a column of these."""
ODD_SHARE = 0.02
"""Cells of a column of numbers or dates that are none, at most; they count as missing, and are named."""
MOST_ODD = 5
"""Different ones."""
TEXT_SHARE = 0.8
"""Of this share of numbers on, a column that is read as text is told of."""
LEAST_NUMBERS = 10
"""Different numbers in it: few with a text between are categories."""
LONGEST_EXAMPLE = 20
LONGEST_NUMBER = 60
"""Signs."""
MOST_DIGITS = 15
"""A number that is longer names something: a computer's number does not hold its last digits."""
LEAST_DAYS = 10
"""Different days written as numbers, such as 20240131, to take them for days."""
SAMPLED_DATES = 12

_MONEY = r"[$€£¥₹₽₩]|(?:EUR|USD|CHF|GBP|JPY|Fr\.|US\$|R\$)"
_BLANKS = "\u00a0\u202f\u2009 "
_NUMBER = re.compile(
    rf"(?P<open>\()?(?P<sign>[+\-\u2212])?[{_BLANKS}]?(?P<before>{_MONEY})?[{_BLANKS}]?(?P<sign2>[+\-\u2212])?"
    rf"(?P<body>(?:\d|[.,]\d)(?:[\d.,'\u2019_{_BLANKS}]*[\d.,])?)(?P<power>[eE][+\-]?\d+)?"
    rf"[{_BLANKS}]?(?P<after>{_MONEY}|%|‰|[A-Za-z°µ²³/]{{1,6}})?(?P<minus>-)?(?(open)\))"
)
_GROUP = rf"'\u2019_{_BLANKS}"
_POINT = re.compile(
    rf"\d+|\d*\.\d+|\d+\.|[1-9]\d{{0,2}}([,{_GROUP}])\d{{3}}(?:\1\d{{3}})*(?:\.\d+)?|[1-9]\d?(?:,\d\d)+,\d{{3}}(?:\.\d+)?"
)
_COMMA = re.compile(rf"\d+|\d*,\d+|\d+,|[1-9]\d{{0,2}}([.{_GROUP}])\d{{3}}(?:\1\d{{3}})*(?:,\d+)?")
_ENDLESS = re.compile(r"[+\-]?inf(inity)?", re.IGNORECASE)
_LEADING_ZERO = re.compile(r"0\d+|\+\d{7,}")
"""A number of a customer, a post code, a telephone."""
_SIGNS = re.compile(r"[^\d]")
_LIKE_A_DATE = re.compile(r"(?=.*\d).{6,40}")
_DAY_NUMBER = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])")
_SHORT_YEAR = re.compile(r"\d\d([./\-])\d\d\1\d\d|\d\d-[A-Za-z]{3}-\d\d")
"""Without its zeros a date with a short year is like the number of a version."""
_MORE_FORMATS = ("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%y", "%d-%b-%y", "%m/%Y")
"""Ways to write dates that pandas does not guess."""


@dataclass(frozen=True, slots=True)
class Number:
    """A text that is a number, in one or both ways to write fractions."""

    body: str
    unit: str
    sign: str
    power: str
    is_point: bool
    is_comma: bool

    @property
    def is_whole(self) -> bool:
        """It has digits alone, and means the same whatever sign fractions have."""
        return self.body.isdigit()

    def value(self, decimal: str) -> float:
        """Return the number, given the decimal sign; without one it is whole."""
        whole, _, fraction = self.body.partition(decimal) if decimal else (self.body, "", "")
        return float(f"{self.sign}{_SIGNS.sub('', whole) or 0}.{fraction or 0}{self.power}")

    @property
    def signs(self) -> frozenset[str]:
        """What stands between its digits."""
        return frozenset(_SIGNS.findall(self.body))


@dataclass(slots=True)
class ReadColumn:
    """A column and what was found out about it."""

    values: Values
    """Numbers, texts, or what an Excel workbook or a parquet file has."""
    kind: ColumnKind | None = None
    """None of texts that may be categories or text."""
    date_format: str | None = None
    decimal: str = ""
    thousands: str = ""
    unit: str = ""
    missing: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)


def read_columns(frame: pd.DataFrame, separator: str, options: TableOptions) -> dict[str, ReadColumn]:
    """Return what each column is. Columns that hold no texts come back as they are."""
    texts = {name: stripped(frame[name]) for name in frame.columns if holds_texts(frame[name])}
    counts = {name: _counts(values) for name, values in texts.items()}
    numbers = {name: _numbers_of(one) for name, one in counts.items()}
    usual = options.decimal or _usual_decimal(numbers, counts)
    prefers_day = usual == "," or separator == ";"
    found = {}
    for name in frame.columns:
        if name not in texts:
            found[name] = _of_workbook(frame[name])
            continue
        read = None
        if not numbers[name] or _may_be_days(numbers[name], counts[name]):
            read = _as_dates(name, texts[name], counts[name], prefers_day, options.dates)
        if read is None:
            decimal, doubt = _decimal(numbers[name], usual, separator)
            read = _as_numbers(name, texts[name], counts[name], numbers[name], options.decimal or decimal)
            if doubt and read.kind is ColumnKind.NUMERIC:
                read.notes.append(f"warning: column {name!r}: {doubt}")
        found[name] = read
    return found


def _of_workbook(values: Values) -> ReadColumn:
    """Return a column that holds no texts, as an Excel workbook or a parquet file has it."""
    if pd.api.types.is_datetime64_any_dtype(values) or pd.api.types.infer_dtype(values, skipna=True) in DATES:
        return ReadColumn(values, ColumnKind.DATE, MOMENT)
    if pd.api.types.infer_dtype(values, skipna=True) == "boolean":
        return ReadColumn(values.astype(object).map(float, na_action="ignore").astype("float64"), ColumnKind.NUMERIC)
    if pd.api.types.is_numeric_dtype(values):
        return ReadColumn(values.astype("float64"), ColumnKind.NUMERIC)
    return ReadColumn(values)


def _may_be_days(numbers: Mapping[str, Number], counts: Counts) -> bool:
    """Return whether texts that are numbers in part may be dates all the same."""
    return len(numbers) < len(counts) / 2 or all(_DAY_NUMBER.fullmatch(text) for text in numbers)


def holds_texts(values: Values) -> bool:
    """Return whether the cells are texts, and no numbers, dates or truths of a workbook."""
    return pd.api.types.infer_dtype(values, skipna=True) in ("string", "empty") and not pd.api.types.is_numeric_dtype(
        values
    )


def stripped(values: Values) -> Values:
    """Return texts without the spaces around them; an empty one is missing."""
    found = values.astype(object).map(str.strip, na_action="ignore")
    return found.where(found.notna() & (found != ""), None)


def parse_number(text: str) -> Number | None:
    """Return the number that a text is in one of the ways to write them; None for any other text."""
    found = _NUMBER.fullmatch(text) if len(text) <= LONGEST_NUMBER else None
    if found is None:
        return _endless(text)
    if (found["before"] and found["after"]) or sum(map(bool, found.group("open", "sign", "sign2", "minus"))) > 1:
        return None
    body, has_power = found["body"], bool(found["power"])
    is_point = _is_number(body, _POINT, ".", has_power)
    is_comma = _is_number(body, _COMMA, ",", has_power)
    if not (is_point or is_comma):
        return None
    signs = found["open"], found["minus"], found["sign"], found["sign2"]
    is_negative = any(one in ("(", "-", "\u2212") for one in signs)
    unit = found["before"] or found["after"] or ""
    return Number(body, unit, "-" if is_negative else "", found["power"] or "", is_point, is_comma)


def _is_number(body: str, form: re.Pattern[str], decimal: str, has_power: bool) -> bool:
    """Return whether digits and signs are a number; one with a power has no sign between thousands."""
    return bool(form.fullmatch(body)) and not (has_power and set(_SIGNS.findall(body)) - {decimal})


def _endless(text: str) -> Number | None:
    if not _ENDLESS.fullmatch(text):
        return None
    return Number("1", "", "-" if text.startswith("-") else "", "e999", True, True)


def _usual_decimal(numbers: Mapping[str, Mapping[str, Number]], counts: Mapping[str, Counts]) -> str:
    """Return the decimal sign that is sure in some columns of numbers and contradicted in none; empty without one."""
    columns = [one for name, one in numbers.items() if len(one) > len(counts[name]) / 2]
    sure = {sign for one in columns if (sign := _sure_decimal(one))}
    return sure.pop() if len(sure) == 1 else ""


def _sure_decimal(numbers: Mapping[str, Number]) -> str:
    point = sum(one.is_point for one in numbers.values())
    comma = sum(one.is_comma for one in numbers.values())
    if point == comma or not numbers:
        return ""
    return "." if point > comma else ","


def _decimal(numbers: Mapping[str, Number], usual: str, separator: str) -> tuple[str, str]:
    """Return (the decimal sign of a column, what is doubtful about it)."""
    sure = _sure_decimal(numbers)
    doubtful = [text for text, one in numbers.items() if not one.is_whole and one.is_point and one.is_comma]
    doubtful = [text for text in doubtful if set(numbers[text].body) & set(".,")]
    if sure or not doubtful:
        return sure, ""
    if usual:
        return usual, ""
    sign = "." if any("." in numbers[text].body for text in doubtful) else ","
    other = "," if sign == "." else "."
    small = [one for one in numbers.values() if one.is_whole]
    is_thousands = len(small) >= len(numbers) / 50 and bool(small) and all(len(one.body) < 4 for one in small)
    if separator in (",", ""):
        return ".", ""
    decimal = other if is_thousands else sign
    text = doubtful[0]
    read = numbers[text].value(decimal)
    return decimal, f"{text!r} may have a decimal or a thousands sign, and is read as {read:g}; --decimal tells it"


def _numbers_of(counts: Counts) -> dict[str, Number]:
    """Return the texts that are numbers of one unit, if they may be a column of numbers; none of them else."""
    found = {text: number for text in counts if (number := parse_number(text)) is not None}
    if any(_LEADING_ZERO.fullmatch(text) for text in counts):
        return {}
    if all(one.is_whole and not one.power for one in found.values()):
        if any(len(one.body) > MOST_DIGITS for one in found.values()):
            return {}
    units = Counter[str]()
    for text, number in found.items():
        units[number.unit] += counts[text]
    named = [unit for unit in units if unit]
    if not named or (len(named) == 1 and (not units[""] or not is_measure(named[0]))):
        return found
    usual = units.most_common(1)[0][0]
    return {text: one for text, one in found.items() if one.unit == usual}


def is_measure(unit: str) -> bool:
    """Return whether a number without this unit is another one: 12 % are not 12, but $ 12 are."""
    return unit == "%" or unit == "‰" or not re.fullmatch(_MONEY, unit)


def _as_numbers(name: str, texts: Values, counts: Counts, numbers: Mapping[str, Number], decimal: str) -> ReadColumn:
    if counts and {text.casefold() for text in counts} <= TRUTHS.keys():
        values = texts.map(lambda text: float(TRUTHS[text.casefold()]), na_action="ignore").astype("float64")
        return ReadColumn(values, ColumnKind.NUMERIC, unit=TRUTH)
    read = {text: one for text, one in numbers.items() if (one.is_comma if decimal == "," else one.is_point)}
    odd = {text: count for text, count in counts.items() if text not in read}
    if not _are_few(odd, counts):
        share = 1 - sum(odd.values()) / max(1, sum(counts.values()))
        is_told = share >= TEXT_SHARE and len(read) >= LEAST_NUMBERS
        return ReadColumn(texts, notes=_of_text(name, odd, "numbers") if is_told else [])
    found = ReadColumn(texts, ColumnKind.NUMERIC)
    found.values = texts.map({text: one.value(decimal) for text, one in read.items()}).astype("float64")
    found.thousands = "".join(sorted({sign for one in read.values() for sign in one.signs} - {decimal}))
    found.decimal = decimal
    found.unit = next((one.unit for one in read.values() if one.unit), "")
    found.missing = tuple(sorted(odd))
    found.notes = _of_odd_cells(name, texts, odd, "number")
    if found.unit:
        text = next(text for text, one in read.items() if one.unit)
        found.notes.append(
            f"column {name!r} is read without its {found.unit}: {text!r} is {read[text].value(decimal):g}"
        )
    return found


def _as_dates(name: str, texts: Values, counts: Counts, prefers_day: bool, told: str | None) -> ReadColumn | None:
    likely = [text for text in counts if _LIKE_A_DATE.fullmatch(text) and text.casefold() not in MISSING]
    if len(likely) < len(counts) / 2 or not likely:
        return None
    if all(map(str.isdigit, likely)) and len(likely) < min(LEAST_DAYS, len(texts)):
        return None
    distinct, weights = pd.Series(list(counts), dtype=object), pd.Series(list(counts.values()))
    forms = {form: _parsed(distinct, form).notna() for form in _formats(likely)}
    best = max((int(weights[one].sum()) for one in forms.values()), default=0)
    if best <= sum(counts.values()) / 2:
        return None
    equal = [form for form, one in forms.items() if int(weights[one].sum()) == best]
    form, doubt = _chosen(equal, likely[0], prefers_day, told)
    odd = {text: counts[text] for text in distinct[~forms[form]]}
    if not _are_few(odd, counts):
        return ReadColumn(texts, notes=_of_text(name, odd, f"dates, {form}"))
    found = ReadColumn(texts.where(~texts.isin(list(odd)), None), ColumnKind.DATE, form, missing=tuple(sorted(odd)))
    found.notes = _of_odd_cells(name, texts, odd, "date")
    if doubt:
        found.notes.append(f"warning: column {name!r}: {doubt}")
    return found


def _formats(likely: Sequence[str]) -> list[str]:
    """Return the ways to write dates in which some of these texts are ones."""
    forms: dict[str, None] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for text in likely[:: max(1, len(likely) // SAMPLED_DATES)]:
            for is_day_first in (True, False):
                form = guess_datetime_format(text, dayfirst=is_day_first)
                if form is not None and ("%d" in form or "%b" in form or "%m" in form):
                    forms[form] = None
    forms = {form: None for form in forms if "%Y-%d-%m" not in form and "%Y/%d" not in form and "%Y.%d" not in form}
    first = pd.Series(likely[:SAMPLED_DATES], dtype=object)
    for form in _MORE_FORMATS:
        is_like_it = "%y" not in form or all(_SHORT_YEAR.fullmatch(text) for text in first)
        if is_like_it and _parsed(first, form).notna().any():
            forms[form] = None
    return [*forms]


def _parsed(texts: Values, form: str) -> Values:
    return pd.to_datetime(texts, format=form, errors="coerce", utc=True)


def _chosen(equal: list[str], example: str, prefers_day: bool, told: str | None) -> tuple[str, str]:
    """Return (the format to read with, what is doubtful about it)."""
    day = [form for form in equal if _day_first(form)]
    month = [form for form in equal if _day_first(form) is False]
    if not (day and month):
        return equal[0], ""
    if told is not None:
        return (day if told == "day-first" else month)[0], ""
    is_day = prefers_day or "/" not in month[0]
    chosen = (day if is_day else month)[0]
    return chosen, f"{example!r} is read with the {'day' if is_day else 'month'} first ({chosen}); --dates tells it"


def _day_first(form: str) -> bool | None:
    """Return whether the day stands before the month; None where that needs no telling."""
    places = form.find("%d"), form.find("%m")
    if min(places) < 0 or form.startswith("%Y"):
        return None
    return places[0] < places[1]


def _are_few(odd: Counts, counts: Counts) -> bool:
    """Return whether a column is what its cells are but for these."""
    whole = sum(counts.values())
    unknown = {text: count for text, count in odd.items() if text.casefold() not in MISSING}
    if not counts or len(odd) == len(counts):
        return False
    if sum(odd.values()) >= whole / 2:
        return False
    if len(unknown) == 1 and not any(sign.isdigit() for sign in next(iter(unknown))):
        return whole - sum(odd.values()) > LEAST_NUMBERS and len(counts) - len(odd) > LEAST_NUMBERS
    return len(unknown) <= MOST_ODD and sum(unknown.values()) <= max(1, ODD_SHARE * whole)


def _of_text(name: str, odd: Counts, what: str) -> list[str]:
    example = max(odd, key=lambda text: odd[text])[:LONGEST_EXAMPLE]
    return [
        f"warning: column {name!r} has {what}, but {sum(odd.values())} of its cells are none, such as {example!r}: "
        "it is read as text; mend those cells"
    ]


def _of_odd_cells(name: str, texts: Values, odd: Counts, what: str) -> list[str]:
    if not odd:
        return []
    first = max(odd, key=lambda text: odd[text])
    row = int((texts == first).to_numpy().argmax()) + 1
    count = sum(odd.values())
    cells = "1 cell is no" if count == 1 else f"{count} cells are no"
    is_usual = all(text.casefold() in MISSING for text in odd)
    said = f"column {name!r}: {cells} {what} and counts as missing, such as {first[:LONGEST_EXAMPLE]!r} in row {row}"
    return [said if is_usual else f"warning: {said}"]


def _counts(texts: Values) -> dict[str, int]:
    return {str(text): int(count) for text, count in texts.value_counts(sort=False).items()}
