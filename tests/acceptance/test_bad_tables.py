"""A table that cannot be learned from: one line, exit 2, and nothing was started."""

import random

import pytest

from apc_console.testing import ApcCommand

ROWS = [(random.Random(number).random(), number % 7) for number in range(120)]
NUMBERS = "a,b,y\n" + "".join(f"{x},{x * n},{n % 2}\n" for x, n in ROWS)

TABLES = {
    "empty": "",
    "header only": "a,b,y\n",
    "five rows": "a,b,y\n" + "".join(f"{x},{n},{n % 2}\n" for x, n in ROWS[:5]),
    "one class": "a,b,y\n" + "".join(f"{x},{n},yes\n" for x, n in ROWS),
    "constant target": "a,b,y\n" + "".join(f"{x},{n},5.0\n" for x, n in ROWS),
    "no such target": "a,b,z\n" + "".join(f"{x},{n},{n % 2}\n" for x, n in ROWS),
}


@pytest.mark.parametrize("name", TABLES)
def test_it_is_refused_in_one_line(apc: ApcCommand, name: str) -> None:
    (apc.folder / "table.csv").write_text(TABLES[name])

    refused = apc("automl", "run", "--data", "table.csv", "--target", "y")

    assert refused.returncode == 2
    assert refused.stderr.startswith("apc: ")
    assert len(refused.stderr.splitlines()) == 1
    assert refused.stdout == ""
    assert not (apc.folder / ".apc/postgres").exists()


def test_a_missing_file_is_refused_in_one_line(apc: ApcCommand) -> None:
    refused = apc("automl", "run", "--data", "table.csv", "--target", "y")

    assert refused.returncode == 2
    assert "table.csv" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.timeout(590)
def test_nothing_but_noise_ends_honestly(apc: ApcCommand) -> None:
    words = random.Random(1)
    rows = [f"{words.choice('xyz')},{words.choice(['', 'u', 'v'])},{words.choice('01')}\n" for _ in range(150)]
    (apc.folder / "noise.csv").write_text("a,b,y\n" + "".join(rows))

    ended = apc("automl", "run", "--data", "noise.csv", "--target", "y", "--generations", "2", timeout_seconds=550)

    assert ended.returncode == 3, ended.stderr[-2000:]
    assert ended.stdout.startswith(
        ("No model is better than the trivial baseline", "The gate refused the best candidate")
    )
    assert "Repeat:" in ended.stdout and "Go on:" in ended.stdout
    assert ended.stderr.splitlines()[-1].startswith("apc: ")
    assert "apc packet replay --run-id" in ended.stdout
