"""What a column is and how it is written, told from all of its cells; and new rows, read by that record.

A sign between thousands is taken out only where a whole column is written with it; a number with leading zeros names
something and stays text. The way in which a column is written stays with the model.
"""

import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pandas as pd
from pandas.tseries.api import guess_datetime_format

from apc_automl.data.table_schema import Column, ColumnKind, Schema, TableOptions
from apc_automl.errors import TableInvalid

Values: TypeAlias = "pd.Series[Any]"

MOMENT: Final = "%Y-%m-%dT%H:%M:%S"
"""How dates of a table that holds dates, not their texts, are written."""
MISSING: Final = frozenset(
    "na n/a n.a. #n/a nan null nil none - -- --- — . ? n.v. n.c. n.d. k.a. missing notavailable (null) (none) "
    "#null! #div/0! #value! #num! #ref! #name?".split()
)
"""In a column of numbers or dates these say that there is none, also with spaces; in one of texts they are texts."""
NO_CELL: Final = frozenset({"", r"\N"})
"""Missing in every column: databases write it so, beside texts such as NULL."""
TRUTHS: Final = {"true": 1.0, "false": 0.0}
TRUTH: Final = "true/false"
TIME: Final = "time of day"
"""The units of a column of these, and of one of hours that were written as times of day."""
MIDNIGHT: Final = "midnight"
"""The unit of a column of dates with times, some of which had none."""
LARGEST_NUMBER = 3e38
"""Trees hold no larger ones."""
ODD_SHARE = 0.02
"""Cells of a column of numbers or dates that are none, at most; they count as missing, and are named."""
MOST_ODD = 5
"""Different ones."""
TEXT_SHARE = 0.8
"""Of this share of numbers on, a column that is read as text is told of."""
LEAST_NUMBERS = 10
"""Different numbers in it: few with a text between are categories."""
LEAST_HOURS = 3
"""Different ones in times such as `8:30` alone: ratios and scores are written so, too."""
LONGEST_EXAMPLE = 20
LONGEST_NUMBER = 60
"""Signs."""
MOST_DIGITS = 15
"""A number that is longer names something: a computer's number does not hold its last digits."""
MOST_MONTHS = 12
LEAST_DAYS = 10
"""Different days written as numbers, such as 20240131, to take them for days."""
SAMPLED_DATES = 12
STRANGE_ROWS = 5
"""So many new rows of unknown categories, and none of a known one, are another column."""

_MONEY = (
    r"[$€£¥₹₽₩₺₴]|(?:EUR|USD|CHF|GBP|JPY|INR|BRL|SEK|NOK|DKK|PLN|CZK|HUF|CAD|AUD|NZD|CNY|MXN|ZAR|TRY"
    r"|Fr\.|US\$|R\$|Rs\.?|kr\.?|zł|Kč|Ft)"
)
_BLANKS = "\u00a0\u202f\u2009 "
_UNSEEN = "\u200b\u200e\u200f\u202a\u202c\u202d\ufeff"
"""Signs without a width, as pages and calculators put them around numbers."""
_NUMBER = re.compile(
    rf"(?P<open>\()?(?P<sign>[+\-\u2212\u2013])?[{_BLANKS}]?(?P<before>{_MONEY})?[{_BLANKS}]?(?P<sign2>[+\-\u2212\u2013])?"
    rf"(?P<body>(?:\d|[.,]\d)(?:[\d.,'\u2019_{_BLANKS}]*[\d.,])?)(?P<power>[eE][+\-]?\d+)?"
    rf"[{_BLANKS}]?(?P<after>{_MONEY}|%|‰|(?:[^\W\d_]|[°µ²³/]){{1,6}})?(?P<minus>-)?(?(open)\))"
)
_NO_CENTS = re.compile(r"(?<=\d)([.,])[\-\u2013\u2014]{1,2}(?!\d)")
"""As shops write prices: 120,-"""
_GROUP = rf"'\u2019_{_BLANKS}"
_FORMS: Final = {
    ".": re.compile(
        rf"\d+|\d*\.\d+|\d+\.|[1-9]\d{{0,2}}([,{_GROUP}])\d{{3}}(?:\1\d{{3}})*(?:\.\d+)?"
        r"|[1-9]\d?(?:,\d\d)+,\d{3}(?:\.\d+)?"
    ),
    ",": re.compile(rf"\d+|\d*,\d+|\d+,|[1-9]\d{{0,2}}([.{_GROUP}])\d{{3}}(?:\1\d{{3}})*(?:,\d+)?"),
}
"""A number without its unit, by decimal sign."""
_ENDLESS = re.compile(r"[+\-]?inf(inity)?", re.IGNORECASE)
_NAMES_SOMETHING = re.compile(rf"0\d+|\+\d{{7,}}|\d{{{MOST_DIGITS + 1},}}")
"""A customer, a post code, a telephone, a card."""
_LIKE_A_DATE = re.compile(r"(?=.*\d).{6,40}")
_NO_DAY = re.compile(r"(0000([/.\-]?)00\2?00|00([/.\-])00\3(00)?00)([ T]00:00(:00)?)?")
"""How databases write that there is none."""
_BOUND = re.compile(r"[<>≤≥]=? ?[\d.,]+.*")
"""A number that is not known, only what it is below or above."""
_DAY_NUMBER = re.compile(r"(19|20)\d\d(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(([01]\d|2[0-3])([0-5]\d){1,2})?")
_SHORT_YEAR = re.compile(r"(\d\d([./\-])\d\d\2\d\d|\d{1,2}/\d{1,2}/\d\d|\d{1,2}-[A-Za-z]{3}-\d\d)( .*)?")
_SHORT_DAY = re.compile(r"\d{1,2}\.\d{1,2}\.\d\d( .*)?")
"""Without its zeros a date with a short year and dots is like the number of a version, until many are seen."""
_SHORT_YEARS = ("%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d-%m-%y", "%d-%b-%y")
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
"""After a short year; ways to write dates that pandas does not guess."""
_LATE_YEAR = 2050
"""A short year from 50 to 68 is read as one of this century, and a birthday of 1955 is none of it."""
_MONTHS: Final = {
    name: english
    for english, names in {
        "January": "january jan januar jänner jän janvier janv enero ene gennaio gen januari janeiro",
        "February": "february feb februar feber février févr febrero febbraio februari fevereiro fev",
        "March": "march mar märz mär mrz mars marzo maart mrt março",
        "April": "april apr avril avr abril abr aprile",
        "May": "may mai mayo maggio mag mei maio",
        "June": "june jun juni juin junio giugno giu junho",
        "July": "july jul juli juillet juil julio luglio lug julho",
        "August": "august aug août agosto ago augustus",
        "September": "september sep sept septembre septiembre settembre set setembro",
        "October": "october oct oktober okt octobre octubre ottobre ott outubro out",
        "November": "november nov novembre noviembre novembro",
        "December": "december dec dezember dez décembre déc diciembre dic dicembre dezembro",
    }.items()
    for name in names.split()
}
_ENGLISH_MONTHS = {name.casefold() for english in _MONTHS.values() for name in (english, english[:3])}
_NAMED_DATE = re.compile(
    rf"(?:[^\W\d]+\.?,? )?(?P<day>(?:\d{{1,2}}(?:er|º|°)?\.?[ \-])?)(?:de )?(?P<month>{'|'.join(_MONTHS)})\.?"
    r"(?P<between>[ \-])(?:de )?(?P<year>\d{4})(?:,? (?:um )?(?P<time>\d{1,2}:\d\d(?::\d\d)?)(?: Uhr| ?h)?)?",
    re.IGNORECASE,
)
_LIKE_A_TIME = re.compile(r"\d{1,2}(:\d\d.*|h\d\d|(\.\d\d)? ?(Uhr|[AaPp]\.?[Mm]\.?))")
_TIMES_OF_DAY = (
    *("%H:%M", "%H:%M:%S", "%H:%M Uhr", "%H.%M Uhr", "%H Uhr", "%H:%M h", "%Hh%M"),
    *("%I:%M %p", "%I:%M%p", "%I:%M:%S %p", "%I %p", "%I%p"),
)
_UNREAD_DATE = re.compile(
    r"(\w{2,5}\.?,? )?\d{1,2}\.? (de )?[^\W\d]{3,10}\.? (de )?\d{4}(,? \d{1,2}:\d\d.*)?"
    r"|[^\W\d]{2,10}\.?,? (\d\d[./-]\d\d[./-]\d\d|\d{1,2}[./-]\d{1,2}[./-]\d{4}).{0,14}"
    r"|(\d{4}[./-]\d{1,2}[./-]\d{1,2}|\d{1,2}[./-]\d{1,2}[./-]\d{4}),?[ T]\d{1,2}[:.]\d\d.{0,14}|\d{4}年.*"
    rf"|({'|'.join(_MONTHS)})\.?[ '/\-]\d\d"
    r"|\d{1,2}[:.]\d\d( Uhr| ?h| ?[AaPp]\.?[Mm]\.?)"
    r"|\d{1,2}:\d\d",
    re.IGNORECASE,
)
"""A date in words that are not known, or a time of day with an hour that no day has."""
_UNITS: Final = frozenset(
    "k M mg g kg t lb oz mm cm m km in ft ml l ms s min h d % ‰ °C °F K W kW MW Wh kWh MWh Hz kHz MHz GHz kJ MJ kcal "
    "kB KB MB GB TB ha".split()
)
_VERSION = re.compile(r"\d{1,2}\.(0|[1-9]\d?)")


@dataclass(frozen=True, slots=True)
class Number:
    """A text that is a number."""

    body: str
    unit: str
    sign: str
    power: str
    decimals: str
    """The decimal signs, of `.` and `,`, with which it is one."""

    @property
    def between(self) -> frozenset[str]:
        """What stands between its digits: nothing in a number that means the same with either decimal sign."""
        return frozenset(self.body) - frozenset("0123456789")

    def value(self, decimal: str) -> float:
        """Return the number, given the decimal sign; without one it is whole."""
        whole, _, fraction = self.body.partition(decimal) if decimal else (self.body, "", "")
        return float(f"{self.sign}{re.sub(r'[^0-9]', '', whole) or 0}.{fraction or 0}{self.power}")


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

    def labels(self, raw: Values) -> Values:
        """Return what a model predicts: truths, times of day and dates are classes, as they are written."""
        is_worded = self.unit in (TRUTH, TIME) or self.kind is ColumnKind.DATE
        if is_worded or pd.api.types.infer_dtype(raw, skipna=True) == "boolean":
            return stripped(raw.astype(object).map(str, na_action="ignore"))
        return self.values


def read_columns(frame: pd.DataFrame, separator: str, options: TableOptions) -> dict[str, ReadColumn]:
    """Return what each column is. Columns that hold no texts come back as they are."""
    texts = {name: _Texts(name, frame[name]) for name in frame.columns if holds_texts(frame[name])}
    usual = options.decimal or only(one.sure_decimal for one in texts.values() if one.are_numbers)
    first = only(_order(*one.forms) for one in texts.values()) or ("day" if usual == "," else "")
    found = {}
    for name in frame.columns:
        if name not in texts:
            found[name] = _typed(frame[name])
        elif texts[name].forms:
            found[name] = texts[name].as_dates(first, separator, options.dates)
        else:
            found[name] = texts[name].as_numbers(usual, separator, options.decimal)
    return found


def only(found: Iterable[str]) -> str:
    """Return what all that are sure agree on; empty without it."""
    sure = {*found} - {""}
    return sure.pop() if len(sure) == 1 else ""


def _typed(values: Values) -> ReadColumn:
    """Return a column that holds no texts, as an Excel workbook or a parquet file has it."""
    kind = pd.api.types.infer_dtype(values, skipna=True)
    if pd.api.types.is_datetime64_any_dtype(values) or kind in ("datetime", "datetime64", "date"):
        return ReadColumn(values, ColumnKind.DATE, MOMENT)
    if kind == "boolean":
        return ReadColumn(values.astype(object).map(float, na_action="ignore").astype("float64"), ColumnKind.NUMERIC)
    if pd.api.types.is_numeric_dtype(values):
        return ReadColumn(values.astype("float64"), ColumnKind.NUMERIC)
    return ReadColumn(values)


def holds_texts(values: Values) -> bool:
    """Return whether the cells are texts, and no numbers, dates or truths of a workbook."""
    is_text = pd.api.types.infer_dtype(values, skipna=True) in ("string", "empty")
    return is_text and not pd.api.types.is_numeric_dtype(values)


def stripped(values: Values) -> Values:
    """Return texts without the spaces around them, and `="01"`, as people save zeros from Excel, as 01.

    An empty one is missing.
    """
    found = values.astype(object).map(_bare, na_action="ignore")
    return found.where(found.notna() & ~found.isin(NO_CELL), None)


def _bare(text: str) -> str:
    text = text.strip() if text.isascii() else text.strip().strip(_UNSEEN).strip()
    return text[2:-1].strip() if text.startswith('="') and text.endswith('"') else text


def parse_number(text: str) -> Number | None:
    """Return the number that a text is in one of the ways to write them; None for any other text."""
    if not text.isascii():
        text = "".join(str(int(sign)) if sign.isdecimal() else sign for sign in text)
    if not text[-1:].isdigit():
        text = _NO_CENTS.sub(r"\g<1>00", text[: LONGEST_NUMBER + 1])
    found = _NUMBER.fullmatch(text) if len(text) <= LONGEST_NUMBER else None
    if found is None:
        is_endless = _ENDLESS.fullmatch(text) is not None
        return Number("1", "", "-" if text.startswith("-") else "", "e999", ".,") if is_endless else None
    signs = found.group("open", "sign", "sign2", "minus")
    if (found["before"] and found["after"]) or sum(map(bool, signs)) > 1:
        return None
    body, power = found["body"], found["power"] or ""
    between = frozenset(body) - frozenset("0123456789")
    # A number with a power has no sign between thousands.
    decimals = [one for one, form in _FORMS.items() if form.fullmatch(body) and not (power and between - {one})]
    is_negative = any(one in ("(", "-", "\u2212", "\u2013") for one in signs)
    unit = found["before"] or found["after"] or ""
    return Number(body, unit, "-" if is_negative else "", power, "".join(decimals)) if decimals else None


def is_measure(unit: str) -> bool:
    """Return whether a number without this unit is another one: 12 % are not 12, but $ 12 are."""
    return not re.fullmatch(_MONEY, unit)


class _Texts:
    """The different texts of a column, how often each stands there, and what they may be."""

    def __init__(self, name: str, values: Values) -> None:
        self.name = name
        self.values = _with_english_months(stripped(values))
        self.counts = {str(text): int(count) for text, count in self.values.value_counts(sort=False).items()}
        self.whole = sum(self.counts.values())
        self.missing = {*filter(is_missing, self.counts)}
        self.parsed = {text: one for text in self.counts if (one := parse_number(text)) is not None}
        self.parsed = {text: one for text, one in self.parsed.items() if not _LIKE_A_TIME.fullmatch(text)}
        self.numbers = self._of_one_unit()
        self.are_numbers = len(self.numbers) > len(self.counts) / 2
        self.forms = self._date_forms()

    @property
    def sure_decimal(self) -> str:
        """The decimal sign with which more of the texts are numbers than with the other."""
        point, comma = (sum(sign in one.decimals for one in self.numbers.values()) for sign in ".,")
        return "" if point == comma else "." if point > comma else ","

    def _count(self, texts: Iterable[str]) -> int:
        return sum(self.counts[text] for text in texts)

    def _of_one_unit(self) -> dict[str, Number]:
        """Return the texts that are numbers of one unit, if they may be a column of numbers; none of them else."""
        found = self.parsed
        is_whole = all(not one.between and not one.power for one in found.values())
        names = [text for text in self.counts if _NAMES_SOMETHING.fullmatch(text)]
        if any(len(text) <= MOST_DIGITS or is_whole for text in names) or self._are_versions():
            return {}
        units = Counter[str]()
        for text, number in found.items():
            units[number.unit] += self.counts[text]
        named = [unit for unit in units if unit]
        if not named or (len(named) == 1 and (not units[""] or not is_measure(named[0]))):
            return found
        usual = units.most_common(1)[0][0]
        return {text: one for text, one in found.items() if one.unit == usual}

    def _are_versions(self) -> bool:
        """Return whether 1.1 and 1.10 differ: of numbers that people type, some begin with a zero behind the point."""
        if not all(_VERSION.fullmatch(text) for text in self.counts):
            return False
        return any(text.endswith("0") and text[:-1] in self.counts and not text.endswith(".0") for text in self.counts)

    def as_numbers(self, usual: str, separator: str, told: str | None) -> ReadColumn:
        """Return a column of numbers, truths or times of day, or of texts where the cells are none of these.

        Args:
            usual: the decimal sign of the other columns; empty where they tell none.
            told: the decimal sign that the user names.
        """
        truths = truths_in(self.counts)
        others = [text for text in self.counts if text not in truths]
        strange = [text for text in others if text not in self.missing]
        if self._count(others) < self.whole / 2 and self._count(strange) <= ODD_SHARE * self.whole:
            return self._numeric(truths, unit=TRUTH)
        times = times_in(self.counts)
        if times and self._are_few(self.counts.keys() - times.keys()) and _are_of_a_day(times):
            example = next(iter(times))
            said = f"column {self.name!r} is a time of day, in hours: {example!r} is {times[example]:g}"
            return self._numeric(times, said, unit=TIME)
        decimal, doubt = (told, "") if told else self._decimal(usual, separator)
        numbers = {text: one for text, one in self.numbers.items() if (decimal or ".") in one.decimals}
        odd = self.counts.keys() - numbers.keys()
        if not self._are_few(odd):
            is_told = self._count(numbers) >= TEXT_SHARE * max(1, self.whole) and len(numbers) >= LEAST_NUMBERS
            return ReadColumn(self.values, notes=self._of_text(odd, "numbers") if is_told else self._of_unread())
        read = {text: one.value(decimal) for text, one in numbers.items()}
        notes = [f"warning: column {self.name!r}: {doubt}"] if doubt else []
        example = next((text for text, one in numbers.items() if one.unit), "")
        unit = numbers[example].unit if example else ""
        if example:
            notes.insert(0, f"column {self.name!r} is read without its {unit}: {example!r} is {read[example]:g}")
        signs = {sign for one in numbers.values() for sign in one.between} - {decimal}
        return self._numeric(read, *notes, unit=unit, decimal=decimal, thousands="".join(sorted(signs)))

    def _numeric(self, read: Mapping[str, float], *said: str, **written: str) -> ReadColumn:
        """Return a column of numbers, in which every other text counts as missing."""
        odd = self.counts.keys() - read.keys()
        notes = [*self._of_odd_cells(odd, "number"), *said]
        values = self.values.map(read).astype("float64")
        return ReadColumn(values, ColumnKind.NUMERIC, missing=tuple(sorted(odd)), notes=notes, **written)

    def _decimal(self, usual: str, separator: str) -> tuple[str, str]:
        """Return (the decimal sign, what is doubtful about it)."""
        sure, numbers = self.sure_decimal, self.numbers
        doubtful = [text for text, one in numbers.items() if one.decimals == ".," and one.between & {*".,"}]
        if sure or not doubtful or usual:
            return sure or (usual if doubtful else ""), ""
        sign = "." if any("." in numbers[text].body for text in doubtful) else ","
        small = [one for one in numbers.values() if not one.between]
        is_thousands = len(small) >= len(numbers) / 50 and bool(small) and all(len(one.body) < 4 for one in small)
        decimal = ("," if sign == "." else ".") if is_thousands else sign
        if separator in (",", ""):
            if decimal == ".":
                return ".", ""
            decimal = "."
        read = numbers[doubtful[0]].value(decimal)
        said = f"{doubtful[0]!r} may have a decimal or a thousands sign, and is read as {read:g}; --decimal tells it"
        return decimal, said

    def _date_forms(self) -> list[str]:
        """Return the ways to write dates in which as many cells as in no other are dates; none where they are no dates.

        Texts that are numbers may be dates all the same.
        """
        if len(self.numbers) >= len(self.counts) / 2 and not all(map(_DAY_NUMBER.fullmatch, self.numbers)):
            return []
        likely = [text for text in self.counts if _LIKE_A_DATE.fullmatch(text) and text not in self.missing]
        if len(likely) < len(self.counts) / 2 or not likely:
            return []
        if all(map(str.isdigit, likely)) and len(likely) < min(LEAST_DAYS, self.whole):
            return []
        sums = {form: self.whole - self._count(self._no_dates(form)) for form in _guessed(likely)}
        best, known = (
            max(sums.values(), default=0),
            self._count(text for text in self.counts if text not in self.missing),
        )
        return [form for form, one in sums.items() if one == best] if best > known / 2 else []

    def _no_dates(self, form: str) -> list[str]:
        distinct = pd.Series([*self.counts], dtype=object)
        return distinct[_parsed(with_midnight(distinct, form), form).isna()].tolist()

    def as_dates(self, first: str, separator: str, told: str | None) -> ReadColumn:
        """Return a column of dates, or of texts where too many cells are none.

        Args:
            first: what is first in the dates of other columns, `day` or `month`; empty where they do not tell it.
            told: what the user says of it.
        """
        odd = self._no_dates(self.forms[0])
        if not self._are_few(odd):
            return ReadColumn(self.values, notes=self._of_text(odd, f"dates, {self.forms[0]}"))
        known = self.values.where(~self.values.isin(odd), None)
        form, chosen = self._choose_order(known, first, separator, told)
        whole = with_midnight(known, form)
        notes = [*self._of_odd_cells(odd, "date"), *self._of_late_years(whole), *chosen]
        without = known[(whole != known) & known.notna()]
        if len(without):
            said = f"{len(without)} dates have no time of day and are read as of midnight, such as {without.iloc[0]!r}"
            notes.append(f"column {self.name!r}: {said}")
        unit = MIDNIGHT if len(without) else ""
        return ReadColumn(whole, ColumnKind.DATE, form, unit=unit, missing=tuple(sorted(odd)), notes=notes)

    def _of_late_years(self, values: Values) -> list[str]:
        years = _parsed(values, self.forms[0]).dt.year
        late = years[years >= _LATE_YEAR] if "%y" in self.forms[0] else years[:0]
        if late.empty:
            return []
        said = f"{values[late.index[0]]!r} is read as a date of {late.iloc[0]:.0f}; write years with four digits"
        return [f"warning: column {self.name!r}: {said}"]

    def _choose_order(self, values: Values, first: str, separator: str, told: str | None) -> tuple[str, list[str]]:
        """Return how the dates are written, and a note where no cell tells whether the day or the month is first.

        A dot between day and month is written where the day is first, and so is a decimal comma; another column of
        dates tells it, too, and so do rows that are in order in one of both ways. Without any of them it is a warning.
        """
        forms = {_order(form): form for form in reversed(self.forms)}
        if not {"day", "month"} <= forms.keys():
            return self.forms[0], []
        likely = first or ("day" if "." in forms["month"] else _order_of_rows(values, forms))
        usual = "day" if separator == ";" or "/" not in forms["month"] else "month"
        order = told.partition("-")[0] if told else likely or usual
        example = str(values.dropna().iloc[0])
        said = f"column {self.name!r}: {example!r} is read with the {order} first ({forms[order]}); --dates tells it"
        return forms[order], [] if told else [said if likely else f"warning: {said}"]

    def _are_few(self, odd: Collection[str]) -> bool:
        """Return whether a column is what its cells are but for these."""
        lost = self._count(odd)
        is_measured = len(self.counts) - len(odd) > LEAST_NUMBERS
        unknown = [text for text in odd if text not in self.missing and not (is_measured and _BOUND.fullmatch(text))]
        if len(odd) == len(self.counts) or (lost if not is_measured else self._count(unknown)) >= self.whole / 2:
            return False
        if len(unknown) == 1 and not any(map(str.isdigit, unknown[0])):
            return is_measured
        return len(unknown) <= MOST_ODD and self._count(unknown) <= max(1, ODD_SHARE * self.whole)

    def _most_frequent(self, texts: Collection[str]) -> str:
        return max((text for text in self.counts if text in texts), key=self.counts.__getitem__)

    def _of_text(self, odd: Collection[str], what: str) -> list[str]:
        example = self._most_frequent(odd)[:LONGEST_EXAMPLE]
        return [
            f"warning: column {self.name!r} has {what}, but {self._count(odd)} of its cells are none, such as "
            f"{example!r}: it is read as text; mend those cells"
        ]

    def _of_unread(self) -> list[str]:
        """Warn of what is not read as what it is: dates, times, versions, several units; tell of texts for nothing."""
        is_likely = any(_UNREAD_DATE.fullmatch(text) for text in [*self.counts][:SAMPLED_DATES])
        dates = [text for text in self.counts if is_likely and _UNREAD_DATE.fullmatch(text)]
        units = sorted({one.unit for one in self.parsed.values()})
        are_numbers = self.missing >= self.counts.keys() - self.parsed.keys()
        is_measured = any(one.between for one in self.parsed.values())  # Numbers of houses have no decimal sign.
        if self._count(dates) > TEXT_SHARE * self.whole:
            why = f"has dates or times such as {dates[0]!r}, which are not read"
        elif are_numbers and self.numbers and len(units) == 1:
            why = "has numbers with a decimal point and others with a comma"
        elif self._are_versions():
            why = "has numbers with and without a zero at their end, as the names of versions are written"
        elif (
            are_numbers
            and len(units) > 1
            and (is_measured or all(one in _UNITS or not is_measure(one) for one in units))
        ):
            why = f"has numbers of several units, {' and '.join(one or 'none' for one in units)}"
        else:
            words = [text for text in self.counts if text in self.missing]
            return [f"column {self.name!r}: {one!r} is a text there, no missing cell" for one in words[:1]]
        return [f"warning: column {self.name!r} {why}: it is read as text"]

    def _of_odd_cells(self, odd: Collection[str], what: str) -> list[str]:
        if not odd:
            return []
        first, count = self._most_frequent(odd), self._count(odd)
        row = int((self.values == first).to_numpy().argmax()) + 1
        cells = f"1 cell is no {what} and counts" if count == 1 else f"{count} cells are no {what} and count"
        said = f"column {self.name!r}: {cells} as missing, such as {first[:LONGEST_EXAMPLE]!r} in row {row}"
        return [said if self.missing.issuperset(odd) else f"warning: {said}"]


def is_missing(text: str) -> bool:
    """Return whether a text says that there is no number or date."""
    return text.casefold().replace(" ", "") in MISSING or (text[:2] == "00" and bool(_NO_DAY.fullmatch(text)))


def _guessed(likely: Sequence[str]) -> list[str]:
    """Return the ways to write dates in which some of these texts are ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sample = likely[:: max(1, len(likely) // SAMPLED_DATES)]
        guessed = [guess_datetime_format(text, dayfirst=first) for text in sample for first in (True, False)]
    forms = [one for one in guessed if one is not None and re.search("%[dbm]", one) and not re.match("%Y.%d", one)]
    forms = [re.sub(r"^(Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b", "%a", form) for form in forms]
    first = pd.Series(likely[:SAMPLED_DATES], dtype=object)
    days = [text.partition(".")[0] for text in likely if _SHORT_DAY.fullmatch(text)]
    is_short = all(_SHORT_YEAR.fullmatch(text) for text in first) or (
        len(days) == len(likely) > LEAST_DAYS and max(map(int, days)) > MOST_MONTHS
    )
    more = [
        "%m/%Y",
        "%B %Y",
        "%b %Y",
        "%b-%y",
        *(f"{day}{time}" for day in _SHORT_YEARS for time in _TIMES if is_short),
    ]
    return [*dict.fromkeys([*forms, *(one for one in more if _parsed(first, one).notna().any())])]


def _parsed(texts: Values, form: str) -> Values:
    return pd.to_datetime(texts, format=form, errors="coerce", utc=True)


def with_midnight(texts: Values, form: str) -> Values:
    """Return dates with a time as they are, and those that lack it with that of midnight; any other text as it is."""
    day = re.split(r"[ T,]*%[HI]", form)[0]
    if day == form:
        return texts
    lacks = _parsed(texts, form).isna() & _parsed(texts, day).notna()
    return texts.where(~lacks, texts.astype(object) + pd.Timestamp(0).strftime(form.removeprefix(day)))


def _with_english_months(texts: Values) -> Values:
    """Return a column with English names of months, if most cells are dates that name one, and some not in English."""
    distinct = texts.dropna().unique()
    months = [found["month"].casefold() for text in distinct if (found := _NAMED_DATE.fullmatch(text))]
    if len(months) <= len(distinct) / 2 or _ENGLISH_MONTHS.issuperset(months):
        return texts
    return texts.map(in_english, na_action="ignore")


def in_english(text: str) -> str:
    """Return a date that names its month with the English name, without the day of the week; another text as it is."""
    found = _NAMED_DATE.fullmatch(text)
    if found is None:
        return text
    time = f" {found['time']}" if found["time"] else ""
    return f"{found['day']}{_MONTHS[found['month'].casefold()]}{found['between']}{found['year']}{time}"


def truths_in(texts: Iterable[str]) -> dict[str, float]:
    """Return the texts that are true or false, and 1 or 0 for each."""
    return {text: TRUTHS[text.casefold()] for text in texts if text.casefold() in TRUTHS}


def times_in(texts: Iterable[str]) -> dict[str, float]:
    """Return the texts that are times of day, and the hour of each: 14.5 for `14:30 Uhr`."""
    likely = pd.Series([text for text in texts if _LIKE_A_TIME.fullmatch(text)], dtype=object)
    plain = likely.str.replace(r"([AaPp])\.([Mm])\.$", r"\1\2", regex=True)
    times = _parsed(plain, _TIMES_OF_DAY[0])
    for form in _TIMES_OF_DAY[1:]:
        times = times.fillna(_parsed(plain, form))
    hours = (times.dt.hour + times.dt.minute / 60 + times.dt.second / 3600).dropna()
    return dict(zip(likely[hours.index], hours.tolist(), strict=True))


def _are_of_a_day(times: Mapping[str, float]) -> bool:
    """Return whether times are none of the ratios and scores that are written like them."""
    is_marked = any(any(map(str.isalpha, text)) or text.count(":") > 1 for text in times)
    return is_marked or len({int(hour) for hour in times.values()}) >= LEAST_HOURS


def _order(*forms: str) -> str:
    """Return what is first in dates, `day` or `month`; empty where both may be, or nobody can err."""
    found = set()
    for form in forms:
        day, month = form.find("%d"), form.find("%m")
        if min(day, month) >= 0 and not form.startswith("%Y"):
            found.add("day" if day < month else "month")
    return found.pop() if len(found) == 1 else ""


def _order_of_rows(values: Values, forms: Mapping[str, str]) -> str:
    """Return which order of day and month has the rows in time; empty where both have, or none."""
    dates = {order: _parsed(values.dropna(), form) for order, form in forms.items()}
    return only(order for order, one in dates.items() if one.is_monotonic_increasing and one.nunique() > LEAST_DAYS)


def as_stored(values: Values, column: Column) -> Values:
    """Return a column as slices hold it: numbers, or texts; the same for training and for prediction."""
    if column.kind is ColumnKind.NUMERIC:
        if pd.api.types.infer_dtype(values, skipna=True) == "boolean":
            values = values.astype(object).map(float, na_action="ignore")
        numbers = pd.to_numeric(values, errors="coerce").astype("float64")
        return numbers.where(numbers.abs() <= LARGEST_NUMBER)
    if pd.api.types.is_datetime64_any_dtype(values):
        zoneless = values.dt.tz_convert("UTC").dt.tz_localize(None) if values.dt.tz is not None else values
        values = zoneless.dt.strftime(column.date_format or MOMENT)
    return values.astype(object).where(values.notna(), None).map(str, na_action="ignore")


def as_numbers(values: Values, column: Column) -> Values:
    """Return a stored column as one number a cell, for tests that look at columns one by one.

    A date is its day, a text its length, a category the rank of its name; NaN where nothing is.
    """
    match column.kind:
        case ColumnKind.NUMERIC:
            return values.astype("float64")
        case ColumnKind.DATE:
            dates = _parsed(values.astype(object), str(column.date_format))
            days: Values = (dates - pd.Timestamp(1970, 1, 1, tz="UTC")) / pd.Timedelta(days=1)
            return days
        case ColumnKind.TEXT:
            return values.astype(object).map(len, na_action="ignore").astype("float64")
    codes: Values = values.astype("category").cat.codes.astype("float64")
    return codes.where(codes >= 0)


def encode_features(frame: pd.DataFrame, schema: Schema, decimal: str | None = None) -> bytes:
    """Return the features of new rows as the reader of models takes them; the target is not needed.

    Args:
        decimal: the decimal sign of the new rows, where it is another one than the model's.

    Raises:
        TableInvalid: columns are missing, or the cells of one are not written as the model's record says.
    """
    missing = [column.name for column in schema.columns if column.name not in frame.columns]
    if missing:
        known = ", ".join(map(repr, frame.columns[:12]))
        raise TableInvalid(f"the table lacks the columns {', '.join(map(repr, missing))}; it has {known}")
    features = pd.DataFrame({one.name: _new_rows(frame[one.name], one, schema, decimal) for one in schema.columns})
    filler = schema.classes[0] if schema.classes else 0.0
    return features.assign(**{schema.target: filler}).to_csv(index=False, lineterminator="\n").encode()


def differences(frame: pd.DataFrame, schema: Schema) -> list[str]:
    """Say what new rows have that the model does not use, or lack that it has been trained with."""
    used = {column.name for column in schema.columns} | {schema.target}
    unused = [name for name in frame.columns if name not in used]
    said = [f"not used by the model: {', '.join(map(repr, unused))}"] if unused else []
    new = [one.name for one in schema.columns if not one.has_missing and _cells(frame[one.name]).isna().any()]
    said += [f"missing values that training had none of: {', '.join(map(repr, new))}"] if new else []
    for column in schema.of_kind(ColumnKind.CATEGORICAL):
        cells = _cells(frame[column.name]).dropna().map(str)
        unknown = cells[~cells.isin(column.known)] if column.known else cells[:0]
        if len(unknown):
            said.append(
                f"column {column.name!r}: {len(unknown)} cells are new to the model, such as {unknown.iloc[0]!r}"
            )
    return said


def _cells(values: Values) -> Values:
    return stripped(values) if holds_texts(values) else values


def _new_rows(values: Values, column: Column, schema: Schema, decimal: str | None) -> Values:
    """Return the cells of new rows as slices hold them. Raises TableInvalid for those that contradict the record."""
    cells = _cells(values)
    if holds_texts(values) and column.kind in (ColumnKind.NUMERIC, ColumnKind.DATE):
        form = column.date_format or ""
        if "%B" in form:
            cells = cells.where(_parsed(cells, form).notna(), cells.map(in_english, na_action="ignore"))
        cells = cells.where(~cells.isin(column.missing), None)
        cells = with_midnight(cells, form) if column.unit == MIDNIGHT else cells
        if column.kind is ColumnKind.NUMERIC:
            sign = decimal or column.decimal or schema.decimal
            return as_stored(_numbers(cells, column, sign, is_told=decimal is not None), column)
    stored = as_stored(cells, column)
    if column.kind is ColumnKind.NUMERIC:
        _refuse_lost(cells, stored, column, "numbers")
    elif column.kind is ColumnKind.DATE:
        _refuse_lost(cells, as_numbers(stored, column), column, f"dates like {column.date_format}")
    elif column.known:
        texts = stored.dropna()
        if len(texts) >= STRANGE_ROWS and not texts.isin(column.known).any():
            raise TableInvalid(
                f"column {column.name!r} holds categories such as {column.known[0]!r} in the model; "
                f"of the {len(texts)} cells here none is known, such as {texts.iloc[0]!r}"
            )
    return stored


def _numbers(cells: Values, column: Column, sign: str, *, is_told: bool) -> Values:
    """Return texts as numbers, read as the model's record says that the column is written."""
    read: dict[str, float] = {}
    numbers = {str(text): parse_number(str(text)) for text in cells.dropna().unique()}
    worded = truths_in(numbers) if column.unit == TRUTH else times_in(numbers) if column.unit == TIME else {}
    known = [one for one in numbers.values() if one is not None]
    usual = sign or ("." if all("." in one.decimals for one in known) else ",")
    for text, number in numbers.items():
        if text in worded:
            read[text] = worded[text]
        elif not is_missing(text) and not (_BOUND.fullmatch(text) and any(map(_BOUND.fullmatch, column.missing))):
            why = _contradiction(number, column, sign, is_told=is_told)
            if why or number is None:
                row = int((cells == text).to_numpy().argmax()) + 1
                raise TableInvalid(f"column {column.name!r} holds numbers{why} in the model; row {row} has {text!r}")
            read[text] = number.value(usual)
    return cells.map(read).astype("float64")


def _contradiction(number: Number | None, column: Column, sign: str, *, is_told: bool) -> str:
    """Say how the numbers of a column are written in the model, where one is not written so; empty where it is."""
    if number is None:
        return ""
    if number.unit != column.unit and (number.unit or is_measure(column.unit)):
        return f" with {column.unit!r}" if column.unit else " without a unit"
    if not number.between:
        return ""
    if not sign:
        return "" if len(number.decimals) == 1 else " without a sign between their digits"
    if sign not in number.decimals:
        return f" with the decimal sign {sign!r} (--decimal tells another)"
    is_open = number.decimals == ".," and not number.between - {sign} <= {*column.thousands}
    return f" with the decimal sign {sign!r} and none between thousands (--decimal tells another)" * (
        is_open and not is_told
    )


def _refuse_lost(given: Values, stored: Values, column: Column, what: str) -> None:
    lost = stored.isna() & given.notna()
    if lost.any():
        row, value = int(lost.to_numpy().argmax()) + 1, given[lost].iloc[0]
        raise TableInvalid(f"column {column.name!r} holds {what} in the model; row {row} has {value!r}")
