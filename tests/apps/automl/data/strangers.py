"""Tables as strangers write them, with their truth: every dialect, type and trap is drawn with a seed."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Literal

Kind = Literal["number", "date", "text"]
Cell = float | date | str | None

ROWS = 120


@dataclass(frozen=True)
class Dialect:
    """How a program writes tables."""

    separator: str
    decimal: str
    thousands: str
    date: str
    encoding: str = "utf-8"

    def number(self, value: float, digits: int) -> str:
        """Write a number."""
        text = f"{value:,.{digits}f}"
        return self.decimal.join(part.replace(",", self.thousands) for part in text.split("."))

    def field(self, text: str) -> str:
        """Write a field, quoted where it must be."""
        if self.separator in text or '"' in text or "\n" in text:
            return '"' + text.replace('"', '""') + '"'
        return text


DIALECTS = {
    "English": Dialect(",", ".", ",", "%m/%d/%Y"),
    "plain": Dialect(",", ".", "", "%Y-%m-%d"),
    "German": Dialect(";", ",", ".", "%d.%m.%Y", "cp1252"),
    "German without thousands": Dialect(";", ",", "", "%d.%m.%y"),
    "French": Dialect(";", ",", "\u202f", "%d/%m/%Y", "utf-8-sig"),
    "Swiss": Dialect(";", ".", "'", "%d.%m.%Y"),
    "tabs": Dialect("\t", ".", "", "%Y-%m-%d %H:%M", "utf-16"),
    "pipes": Dialect("|", ".", ",", "%d-%b-%Y"),
    "Swedish": Dialect("\t", ",", "\u00a0", "%Y-%m-%d"),
    "quoted": Dialect(",", ",", ".", "%d.%m.%Y"),
}


@dataclass(frozen=True)
class Column:
    """A column as it is written, and what its cells are."""

    name: str
    kind: Kind
    written: list[str]
    truth: list[Cell]


@dataclass(frozen=True)
class Stranger:
    """A table file and its truth."""

    name: str
    data: bytes
    columns: list[Column]


Draw = Callable[[random.Random, Dialect], tuple[Kind, list[str], list[Cell]]]


def _numbers(digits: int, low: float, high: float, before: str = "", after: str = "") -> Draw:
    def draw(dice: random.Random, dialect: Dialect) -> tuple[Kind, list[str], list[Cell]]:
        values = [round(dice.uniform(low, high), digits) for _ in range(ROWS)]
        values[0] = round(high, digits) - 10**-digits if digits else float(round(high))
        values[1] = round(low, digits) + 10**-digits if digits else float(round(low))
        return "number", [f"{before}{dialect.number(one, digits)}{after}" for one in values], [*values]

    return draw


def _debits(dice: random.Random, dialect: Dialect) -> tuple[Kind, list[str], list[Cell]]:
    values = [round(dice.uniform(1, 3_000), 2) for _ in range(ROWS)]
    signs = [dice.random() < 0.3 for _ in range(ROWS)]
    written = [dialect.number(one, 2) for one in values]
    written = [f"({text})" if sign else text for text, sign in zip(written, signs, strict=True)]
    return "number", written, [-one if sign else one for one, sign in zip(values, signs, strict=True)]


def _powers(dice: random.Random, dialect: Dialect) -> tuple[Kind, list[str], list[Cell]]:
    written = [f"{dice.uniform(1, 9):.3f}E{dice.randrange(-9, 9):+03d}" for _ in range(ROWS)]
    return "number", [one.replace(".", dialect.decimal) for one in written], [float(one) for one in written]


def _early_days(dice: random.Random, dialect: Dialect) -> tuple[Kind, list[str], list[Cell]]:
    days = [date(dice.randrange(2018, 2024), dice.randrange(1, 13), dice.randrange(1, 13)) for _ in range(ROWS)]
    return "date", [one.strftime(dialect.date) for one in days], [*days]


def _dates(dice: random.Random, dialect: Dialect) -> tuple[Kind, list[str], list[Cell]]:
    days: list[Cell] = []
    written = []
    for _ in range(ROWS):
        day = date(2019, 1, 1) + timedelta(days=dice.randrange(1500))
        days.append(day)
        written.append(day.strftime(dialect.date))
    return "date", written, days


def _texts(make: Callable[[random.Random], str]) -> Draw:
    def draw(dice: random.Random, _: Dialect) -> tuple[Kind, list[str], list[Cell]]:
        values = [make(dice) for _ in range(ROWS)]
        return "text", values, [*values]

    return draw


WORDS = ("parcel", "late", "größer", "refund", 'the "new" one', "a, b", "x; y", "tea | milk", "50 % off")
TYPES: dict[str, Draw] = {
    "amount": _numbers(2, 1, 19_000),
    "price": _numbers(2, 1, 5_000, before="$"),
    "cost": _numbers(2, 1, 5_000, after=" €"),
    "rate": _numbers(1, 0, 99, after="%"),
    "weight": _numbers(2, 1, 90, after=" kg"),
    "count": _numbers(0, 1, 900),
    "share": _numbers(4, 0, 1),
    "large": _numbers(0, 1, 19_000),
    "huge": _numbers(0, 1_000_000, 90_000_000),
    "measured": _numbers(3, 1, 900),
    "debit": _debits,
    "power": _powers,
    "early": _early_days,
    "change": _numbers(2, -2_500, 2_500),
    "when": _dates,
    "code": _texts(lambda dice: f"{dice.randrange(100_000):05d}"),
    "address": _texts(lambda dice: ".".join(str(dice.randrange(1, 255)) for _ in range(4))),
    "version": _texts(lambda dice: f"{dice.randrange(1, 9)}.{dice.randrange(1, 9)}.{dice.randrange(10, 99)}"),
    "phone": _texts(lambda dice: f"0{dice.randrange(30, 99)} {dice.randrange(10**6, 10**7)}"),
    "mobile": _texts(lambda dice: f"+49{dice.randrange(10**9, 10**10)}"),
    "card": _texts(lambda dice: str(dice.randrange(10**17, 10**18))),
    "grade": _texts(lambda dice: dice.choice(["None", "Mild", "Severe"])),
    "country": _texts(lambda dice: dice.choice(["NA", "DE", "US"])),
    "note": _texts(lambda dice: " ".join(dice.choice(WORDS) for _ in range(3))),
    "letter": _texts(lambda dice: "\n".join(dice.choice(WORDS) for _ in range(2))),
    "flat": _texts(lambda dice: f"{dice.randrange(1, 60)}{dice.choice('abc')}"),
    "answer": _texts(lambda dice: dice.choice(["yes", "no"])),
}
Lines = list[str]
TRAPS = ("none", "trailing", "title", "sep", "odd", "marker", "gaps", "sorted", "spaces", "index", "short header")


def make_stranger(seed: int) -> Stranger:
    """Return the table of a seed: the dialects and traps take turns, the columns are drawn."""
    dice = random.Random(seed)
    name = [*DIALECTS][seed % len(DIALECTS)]
    dialect, trap = DIALECTS[name], TRAPS[seed // 3 % len(TRAPS)]
    columns = []
    for kind in dice.sample([*TYPES], 7):
        what, written, truth = TYPES[kind](dice, dialect)
        columns.append(Column(kind, what, written, truth))
    columns = [_trapped(column, trap, dice) for column in columns]
    columns.append(Column("y", "text", *_labels(dice)))
    if trap == "sorted":
        columns = _sorted(columns)
    head, lines = _lines(columns, dialect, trap)
    text = "\n".join([*head, *lines]) + "\n"
    return Stranger(f"{seed} {name}, {trap}", text.encode(dialect.encoding), columns)


def _labels(dice: random.Random) -> tuple[list[str], list[Cell]]:
    labels = [dice.choice(["good", "bad"]) for _ in range(ROWS)]
    return labels, [*labels]


def _trapped(column: Column, trap: str, dice: random.Random) -> Column:
    written, truth = [*column.written], [*column.truth]
    if trap == "gaps":
        for place in dice.sample(range(2, ROWS), 9):
            written[place], truth[place] = "", None
    if trap == "marker" and column.kind != "text":
        for place in dice.sample(range(2, ROWS), 7):
            written[place], truth[place] = "NA", None
    if trap == "odd" and column.kind != "text":
        written[ROWS - 20], truth[ROWS - 20] = "n.v.", None
    if trap == "spaces":
        written = [f" {one} " for one in written]
    return Column(column.name, column.kind, written, truth)


def _sorted(columns: list[Column]) -> list[Column]:
    first = columns[0].truth
    order = sorted(range(ROWS), key=lambda place: (first[place] is not None, first[place]))
    return [
        Column(one.name, one.kind, [one.written[at] for at in order], [one.truth[at] for at in order])
        for one in columns
    ]


def _lines(columns: list[Column], dialect: Dialect, trap: str) -> tuple[Lines, Lines]:
    names = [column.name for column in columns]
    rows = [[dialect.field(column.written[place]) for column in columns] for place in range(ROWS)]
    if trap in ("index", "short header"):
        rows = [[str(number), *row] for number, row in enumerate(rows)]
        names = ["", *names] if trap == "index" else names
    end = dialect.separator if trap == "trailing" else ""
    lines = [dialect.separator.join(row) + end for row in rows]
    head = [dialect.separator.join(names)]
    if trap == "title":
        head = ["Report of 2024", "", *head]
    if trap == "sep":
        head = [f"sep={dialect.separator}", *head]
    return head, lines
