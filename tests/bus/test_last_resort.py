"""The records of the last resort: what outlives a process, and who is blamed for its end."""

import os
from contextlib import ExitStack
from pathlib import Path
from time import time

import pytest
from structlog.testing import capture_logs

from apc_bus.last_resort import ATTEMPTS, FILE, REMEMBERED_SECONDS, EndRecords, LastResort, RedeliveryWatch, Risk

QUEUE = "inbox"


class Broker:
    """A bus, as far as the last resort knows it."""

    scope = "broker:5672/"


def killed(folder: Path, *messages: bytes) -> None:
    """Run a process that ends without a word while these messages are at risk."""
    child = os.fork()
    if not child:
        resort, held = LastResort(folder), ExitStack()
        for message in messages:
            held.enter_context(risk_of(resort, message).at_once())
        os._exit(1)
    os.waitpid(child, 0)


def watch(resort: LastResort) -> RedeliveryWatch:
    return resort.watch(Broker(), QUEUE)


def risk_of(resort: LastResort, message: bytes) -> Risk:
    return watch(resort).risk(message)


async def test_a_message_is_set_aside_after_so_many_processes_have_died_of_it(tmp_path: Path) -> None:
    for _ in range(ATTEMPTS):
        assert not risk_of(LastResort(tmp_path), b"poison").is_too_high()
        killed(tmp_path, b"poison")
    assert risk_of(LastResort(tmp_path), b"poison").is_too_high()
    assert not risk_of(LastResort(tmp_path), b"innocent").is_too_high()


async def test_nobody_is_blamed_who_was_not_alone(tmp_path: Path) -> None:
    for _ in range(2 * ATTEMPTS):
        killed(tmp_path, b"poison", b"innocent")
    assert not any(risk_of(LastResort(tmp_path), one).is_too_high() for one in (b"poison", b"innocent"))


async def test_what_comes_through_is_forgotten(tmp_path: Path) -> None:
    for _ in range(3 * ATTEMPTS):
        killed(tmp_path, b"slow")
        risk = risk_of(LastResort(tmp_path), b"slow")
        async with risk.taken():
            assert not risk.is_too_high()
        risk.end()
    killed(tmp_path, b"slow")
    assert not risk_of(LastResort(tmp_path), b"slow").is_too_high()


async def test_only_an_end_before_all_is_through_makes_the_next_one_careful(tmp_path: Path) -> None:
    assert not (tmp_path / FILE).exists()
    first = watch(LastResort(tmp_path))
    first.arrive(is_redelivered=False)  # killed: with nothing that came again
    assert not (tmp_path / FILE).exists(), "the good case writes nothing"
    second = watch(LastResort(tmp_path))
    second.arrive(is_redelivered=True)
    second.note_settled(None)
    assert second.is_calm
    third = watch(LastResort(tmp_path))
    assert not third.is_careful
    third.arrive(is_redelivered=True)  # killed at once: a crash loop
    fourth = watch(LastResort(tmp_path))
    assert fourth.is_careful
    fourth.arrive(is_redelivered=False)
    assert not fourth.is_careful, "what came again is through, or somebody else's"


async def test_old_ends_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch(LastResort(tmp_path)).arrive(is_redelivered=True)
    for _ in range(ATTEMPTS):
        killed(tmp_path, b"poison")
    later = time() + REMEMBERED_SECONDS + 1
    monkeypatch.setattr("apc_bus.last_resort.time", lambda: later)
    assert not watch(LastResort(tmp_path)).is_careful
    assert not risk_of(LastResort(tmp_path), b"poison").is_too_high()


async def test_a_folder_that_cannot_be_used_costs_the_records_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / FILE).write_bytes(b"no database at all " * 100)
    for folder in (tmp_path / "file", tmp_path):
        records = EndRecords(folder)
        with capture_logs() as logs:
            records.add_run(QUEUE, "run")
        assert [line["event"] for line in logs] == ["ends_not_kept"]
        assert records.unproven_runs(QUEUE) == 1


async def test_records_of_two_brokers_are_kept_apart(tmp_path: Path) -> None:
    class Other:
        scope = "other:5672/"

    watch(LastResort(tmp_path)).arrive(is_redelivered=True)
    assert watch(LastResort(tmp_path)).is_careful
    assert not LastResort(tmp_path).watch(Other(), QUEUE).is_careful
