"""A table that cannot be learned from: one line, exit 2, and nothing was started."""

import random

import pytest
from tests.support.apc_command import ApcCommand

FIVE_ROWS = "a,b,y\n" + "".join(f"{number / 3},{number},{number % 2}\n" for number in range(5))


def test_it_is_refused_in_one_line(apc: ApcCommand) -> None:
    """One table through the command; the others: tests/apps/automl/data."""
    (apc.folder / "table.csv").write_text(FIVE_ROWS)

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


@pytest.mark.long
@pytest.mark.timeout(590)
def test_nothing_but_noise_ends_honestly(apc: ApcCommand) -> None:
    words = random.Random(1)
    rows = [f"{words.choice('xyz')},{words.choice(['', 'u', 'v'])},{words.choice('01')}\n" for _ in range(150)]
    (apc.folder / "noise.csv").write_text("a,b,y\n" + "".join(rows))

    ended = apc(
        "automl",
        "run",
        "--data",
        "noise.csv",
        "--target",
        "y",
        "--generations",
        "1",
        "--rounds",
        "1",
        timeout_seconds=550,
    )

    assert ended.returncode == 3, ended.stderr[-2000:]
    assert ended.stdout.startswith(
        ("No model is better than the trivial baseline", "The gate refused the best candidate")
    )
    assert "Repeat:" in ended.stdout and "Go on:" in ended.stdout
    assert ended.stderr.splitlines()[-1].startswith("apc: ")
    assert "apc packet replay --run-id" in ended.stdout
