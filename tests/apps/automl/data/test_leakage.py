"""Five tables with leakage: the claimed error is that on new rows, within a tenth, or a warning names the reason."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from apc_automl.data.columns import encode_features
from apc_automl.data.source import read_source
from apc_automl.data.table import decode_rows
from apc_automl.data.table_schema import Schema, TableOptions
from apc_automl.model.model_file import predict
from apc_automl.training.gates import loss_of
from apc_automl.training.measuring import prepare
from apc_automl.training.reviewing import plain_model

Lines = list[list[str]]
Make = Callable[[random.Random, bool], tuple[str, Lines]]
WriteTable = Callable[[str], Path]
NEAR = 0.1
"""The tables are so large that chance alone makes a difference of about 3 %."""


def duplicates(dice: random.Random, is_new: bool) -> tuple[str, Lines]:
    """Each row four times, as after a join; new rows are none of these."""
    rows: Lines = []
    for _ in range(2500):
        a, b, c = (dice.random() for _ in range(3))
        row = [f"{a:.4f}", f"{b:.4f}", f"{c:.4f}", f"{3 * a - b + dice.gauss(0, 0.5):.3f}"]
        rows += [row] * (1 if is_new else 4)
    dice.shuffle(rows)
    return "a,b,c,y", rows


def groups(dice: random.Random, is_new: bool) -> tuple[str, Lines]:
    """The columns tell the customer, and each has its own target; the new ones are others."""
    rows: Lines = []
    for number in range(2000):
        own = [dice.random() for _ in range(3)]
        label = 2 * own[0] + dice.gauss(0, 1)
        for _ in range(3):
            cells = [f"{value + dice.gauss(0, 0.001):.4f}" for value in own]
            rows.append([f"{'new' if is_new else 'c'}{number}", *cells, f"{label + dice.gauss(0, 0.3):.3f}"])
    dice.shuffle(rows)
    return "customer,a,b,c,y", rows


def days(dice: random.Random, is_new: bool) -> tuple[str, Lines]:
    """A target that goes up and down slowly; new rows are later."""
    value, rows = 0.0, list[list[str]]()
    for day in range(1800):
        value = 0.97 * value + dice.gauss(0, 1)
        a, month = dice.random(), day // 28
        date = f"{2011 + month // 12}-{1 + month % 12:02d}-{1 + day % 28:02d}"
        rows.append([date, f"{a:.4f}", f"{dice.random():.4f}", f"{value + 3 * a:.3f}"])
    return "day,a,b,y", rows[1200:] if is_new else rows[:1200]


def copies(dice: random.Random, is_new: bool) -> tuple[str, Lines]:
    """A column that is made of the target, and that new rows do not have yet."""
    rows: Lines = []
    for _ in range(1000):
        a = dice.random()
        label = 2 * a + dice.gauss(0, 1)
        rows.append([f"{a:.4f}", "" if is_new else f"{label * 1.19:.2f}", f"{label:.3f}"])
    return "a,gross,y", rows


def ids(dice: random.Random, is_new: bool) -> tuple[str, Lines]:
    """Numbers that the rows got when they were sorted by the target."""
    labels = [dice.gauss(0, 1) for _ in range(1000)]
    labels = labels if is_new else sorted(labels)
    rows: Lines = []
    for place, label in enumerate(labels):
        number = (20_000 if is_new else 7 * place) + dice.randrange(5)
        rows.append([str(number), f"{label / 2 + dice.gauss(0, 1):.4f}", f"{label:.3f}"])
    dice.shuffle(rows)
    return "ticket,a,y", rows


def claimed_and_true(
    make: Make, seed: int, options: TableOptions | None, write: WriteTable
) -> tuple[float, float, str]:
    """Return (the error on the untouched rows, that on new rows, the warnings), as root mean squared errors."""

    def table(is_new: bool) -> Path:
        # Days go on where the others end; of other tables the new rows are drawn on their own.
        header, rows = make(random.Random(seed + 1000 * (is_new and make is not days)), is_new)
        return write("\n".join([header, *map(",".join, rows)]) + "\n")

    prepared = prepare(str(table(False)), "y", None, 7, 1, 20_000, options)
    schema = Schema.model_validate_json(prepared.schema)
    parts = [decode_rows(part, schema) for part in (prepared.train, prepared.held_out)]
    model = plain_model(schema, 1)
    model.fit(pd.concat([one for one, _ in parts], ignore_index=True), np.concatenate([one for _, one in parts]))
    unseen, labels = decode_rows(prepared.untouched[0], schema)
    frame = read_source(table(True)).frame
    new, _ = decode_rows(encode_features(frame, schema), schema)
    claimed = loss_of(labels, predict(model, schema, unseen), ()) ** 0.5
    true = loss_of(frame["y"].astype(float).to_numpy(), predict(model, schema, new), ()) ** 0.5
    return claimed, true, "\n".join(note for note in schema.notes if note.startswith("warning: "))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("make", "options", "reason"),
    [
        (duplicates, None, ""),
        (groups, None, "rows of one 'customer' are alike"),
        (groups, TableOptions(group="customer"), ""),
        (days, None, "column 'day': later rows are predicted worse"),
        (days, TableOptions(time="day"), "column 'day': later rows are predicted worse"),
        (copies, None, "column 'gross' predicts 'y' alone"),
        (ids, None, "column 'ticket' predicts 'y' alone"),
    ],
)
def test_the_claimed_error_is_the_true_one_or_a_warning_names_the_reason(
    make: Make, options: TableOptions | None, reason: str, seed: int, write_table: WriteTable
) -> None:
    claimed, true, warnings = claimed_and_true(make, seed, options, write_table)
    print(f"{make.__name__} {seed}: claimed {claimed:.3f}, true {true:.3f}")
    if reason:
        assert re.search(reason, warnings)
    else:
        assert claimed == pytest.approx(true, rel=NEAR)


@pytest.mark.parametrize(
    ("options", "time", "said"),
    [
        (None, "day", "judged on the latest by 'day'; --time none switches it off"),
        (TableOptions(time="none"), "", "rows are split without regard to time, as --time none says"),
    ],
)
def test_the_order_in_time_can_be_switched_off(
    options: TableOptions | None, time: str, said: str, write_table: WriteTable
) -> None:
    header, rows = days(random.Random(1), False)
    path = write_table("\n".join([header, *map(",".join, rows[:300])]) + "\n")
    prepared = prepare(str(path), "y", None, 7, 1, 5000, options)
    schema = Schema.model_validate_json(prepared.schema)
    assert schema.time == time
    assert any(said in note for note in schema.notes)
    assert any("later rows are predicted worse" in note for note in schema.notes) is bool(time)
