"""The records of the last resort: what outlives a process, and who is blamed for its end."""

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from time import time

import pytest
from structlog.testing import capture_logs

from apc_bus.errors import TaskEnded
from apc_bus.last_resort import (
    ATTEMPTS,
    FILE,
    REMEMBERED_SECONDS,
    LastResort,
    RedeliveryWatch,
    Risk,
    others_go_on,
)
from apc_cli.system.running import run

QUEUE = "inbox"


class Broker:
    """A bus, as far as the last resort knows it."""

    scope = "broker:5672/"


@contextmanager
def living(folder: Path, begin: Callable[[LastResort], object]) -> Iterator[None]:
    """Run a process that does what it has to, lives on, and is killed in the end."""
    told, tells = os.pipe()
    child = os.fork()
    if not child:
        os.close(told)
        try:
            held = begin(LastResort(folder))
            os.write(tells, b".")
            signal.pause()
            del held
        finally:
            os._exit(1)
    os.close(tells)
    try:
        assert os.read(told, 1) == b".", "it could not begin"
        yield
    finally:
        os.close(told)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def killed(folder: Path, *messages: bytes) -> None:
    """Run a process that ends without a word while these messages are at risk."""
    held = ExitStack()

    def begin(resort: LastResort) -> None:
        for message in messages:
            held.enter_context(risk_of(resort, message).at_once())

    with living(folder, begin):
        pass


def redelivered(resort: LastResort) -> RedeliveryWatch:
    """Begin a subscription with a message that came before."""
    begun = watch(resort)
    begun.arrive(is_redelivered=True)
    return begun


def killed_in_a_run(folder: Path) -> None:
    """Run a process that ends without a word before it is through with what was redelivered."""
    with living(folder, redelivered):
        pass


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
    second = redelivered(LastResort(tmp_path))
    second.note_settled([], None, is_idle=True)
    assert second.is_calm
    assert not watch(LastResort(tmp_path)).is_careful
    killed_in_a_run(tmp_path)  # a crash loop
    fourth = watch(LastResort(tmp_path))
    assert fourth.is_careful
    fourth.arrive(is_redelivered=False)
    assert not fourth.is_careful, "what came again is through, or somebody else's"
    fourth.arrive(is_redelivered=True)
    assert fourth.is_careful, "it was somebody else's, who has ended too"


async def test_a_run_that_goes_on_says_nothing(tmp_path: Path) -> None:
    with living(tmp_path, redelivered):
        assert not redelivered(LastResort(tmp_path)).is_careful, "of another process"
        assert not redelivered(LastResort(tmp_path)).is_careful, "of this one"
    assert redelivered(LastResort(tmp_path)).is_careful, "that process was killed"


async def test_who_comes_through_forgets_no_run_that_goes_on(tmp_path: Path) -> None:
    killed_in_a_run(tmp_path)
    careful = redelivered(LastResort(tmp_path))
    assert careful.is_careful
    with living(tmp_path, redelivered):
        careful.note_settled([], False, is_idle=True)
        assert careful.is_calm and not watch(LastResort(tmp_path)).is_careful
    assert watch(LastResort(tmp_path)).is_careful


async def test_a_message_that_comes_again_later_begins_a_run_too(tmp_path: Path) -> None:
    def begin(resort: LastResort) -> RedeliveryWatch:
        begun = watch(resort)
        begun.arrive(is_redelivered=False)
        assert begun.is_calm
        begun.arrive(is_redelivered=True)
        assert not begun.is_calm
        return begun

    with living(tmp_path, begin):
        pass
    assert begin(LastResort(tmp_path)).is_careful


async def test_old_ends_say_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_in_a_run(tmp_path)
    for _ in range(ATTEMPTS):
        killed(tmp_path, b"poison")
    later = time() + REMEMBERED_SECONDS + 1
    monkeypatch.setattr("apc_bus.last_resort.time", lambda: later)
    assert not watch(LastResort(tmp_path)).is_careful
    assert not risk_of(LastResort(tmp_path), b"poison").is_too_high()


async def test_a_folder_that_cannot_be_used_costs_the_records_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / FILE).write_bytes(b"no database at all " * 100)
    # The system does not say whether something is there, as in a folder that only another user may enter.
    unsearchable = tmp_path / ("x" * 300)
    for folder in (tmp_path / "file", tmp_path, unsearchable):
        resort = LastResort(folder)
        with capture_logs() as logs:
            assert not watch(resort).is_careful
            with pytest.raises(ZeroDivisionError), redelivered(resort).until_end():
                raise ZeroDivisionError("nobody has foreseen this")
            assert not watch(resort).risk(b"message").is_too_high()
        assert [line["event"] for line in logs] == ["ends_not_kept"]
        assert watch(resort).is_careful


async def test_a_run_of_any_name_is_one_that_has_ended(tmp_path: Path) -> None:
    assert not redelivered(LastResort(tmp_path)).is_careful
    with closing(sqlite3.connect(tmp_path / FILE)) as database, database:
        database.execute("INSERT INTO runs VALUES (?, 'zz', 9e15)", (f"{Broker.scope} {QUEUE}",))
    assert watch(LastResort(tmp_path)).is_careful


# A slow neighbour, in processes that handle both messages at once.

SHORT_PATIENCE = 0.02
MOST_ENDS = 12
Handling = Callable[[], Awaitable[None]]


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def ends_until_through(folder: Path, handlings: dict[bytes, Handling], innocents: set[bytes]) -> int:
    """Run processes that handle these messages side by side until one of them lives; return how many did not."""
    for ends in range(MOST_ENDS):
        child = os.fork()
        if not child:
            try:
                os._exit(asyncio.run(live(LastResort(folder), handlings)))
            finally:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        later = LastResort(folder)
        assert not any(risk_of(later, one).is_too_high() for one in innocents)
        if not os.WIFSIGNALED(status):
            assert os.waitstatus_to_exitcode(status) == 0
            return ends
    raise AssertionError("a deadly message was never set aside")


async def live(resort: LastResort, handlings: dict[bytes, Handling]) -> int:
    """Handle messages; a process in which one is set aside has lived."""
    risks = {message: risk_of(resort, message) for message in handlings}
    if any(risk.is_too_high() for risk in risks.values()):
        return 0

    async def take(message: bytes) -> None:
        async with risks[message].taken():
            await handlings[message]()
        risks[message].end()

    await asyncio.gather(*map(take, handlings))
    return 1


async def hang() -> None:
    await asyncio.Event().wait()


async def die() -> None:
    kill()


async def die_late() -> None:
    await asyncio.sleep(6 * SHORT_PATIENCE)
    kill()


async def end_late() -> None:
    await asyncio.sleep(20 * SHORT_PATIENCE)


@pytest.mark.parametrize(
    ("neighbour", "deadly"), [(hang, die), (end_late, die), (hang, die_late), (end_late, die_late)]
)
@pytest.mark.parametrize("is_deadly_first", [True, False])
def test_a_slow_neighbour_does_not_shield_a_deadly_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, neighbour: Handling, deadly: Handling, is_deadly_first: bool
) -> None:
    monkeypatch.setattr("apc_bus.last_resort.PATIENCE_SECONDS", SHORT_PATIENCE)
    handlings = {b"slow": neighbour, b"poison": deadly}
    ends_until_through(tmp_path, dict(sorted(handlings.items(), reverse=not is_deadly_first)), {b"slow"})
    assert risk_of(LastResort(tmp_path), b"poison").is_too_high()


def test_a_handler_that_waits_for_others_is_not_at_risk_meanwhile(tmp_path: Path) -> None:
    async def wait() -> None:
        async with others_go_on():
            await hang()

    ends = ends_until_through(tmp_path, {b"waiting": wait, b"poison": die}, {b"waiting"})
    assert ends == ATTEMPTS, "each of them counted, and nobody had to be patient"


async def test_a_handler_that_has_waited_goes_on_in_its_turn(tmp_path: Path) -> None:
    resort, steps, is_answered = LastResort(tmp_path), list[str](), asyncio.Event()

    async def ask() -> None:
        async with risk_of(resort, b"asks").taken():
            steps.append("asks")
            async with others_go_on():
                await is_answered.wait()
            steps.append("has the answer")

    async def answer() -> None:
        async with risk_of(resort, b"answers").taken():
            is_answered.set()
            await asyncio.gather(others_stay())
            steps.append("has answered")

    async def others_stay() -> None:
        async with others_go_on():  # not the handler: it gives up no turn
            await asyncio.sleep(0)

    await asyncio.gather(ask(), answer())
    assert steps == ["asks", "has answered", "has the answer"]


async def test_a_handler_whose_wait_is_cut_is_at_risk_again(tmp_path: Path) -> None:
    resort = LastResort(tmp_path)
    for _ in range(ATTEMPTS):
        with pytest.raises(ZeroDivisionError):
            async with risk_of(resort, b"poison").taken():
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0), others_go_on():
                        await hang()
                raise ZeroDivisionError("nobody has foreseen this")
    assert risk_of(resort, b"poison").is_too_high()


class _Defect(BaseException):
    """What no `except Exception` sees."""


def _exit() -> None:
    sys.exit(0)


def _raise() -> None:
    raise _Defect


def _stop_the_loop() -> None:
    asyncio.get_running_loop().stop()


@pytest.mark.parametrize("how", [_exit, _stop_the_loop])
def test_an_end_of_the_loop_that_nobody_asked_for_is_no_explanation(tmp_path: Path, how: Callable[[], None]) -> None:
    async def consume() -> None:
        with redelivered(LastResort(tmp_path)).until_end():
            asyncio.get_running_loop().call_soon(how)
            await asyncio.Event().wait()

    for _ in range(2):
        with pytest.raises(TaskEnded, match="has ended without having been told to stop: "):
            run(consume())
    assert watch(LastResort(tmp_path)).is_careful


def test_an_end_of_one_loop_says_nothing_of_another(tmp_path: Path) -> None:
    """Of a process that runs several, one after the other or in threads."""

    async def end() -> None:
        asyncio.get_running_loop().call_soon(_exit)
        await asyncio.Event().wait()

    async def be_cancelled() -> None:
        with pytest.raises(asyncio.CancelledError), redelivered(LastResort(tmp_path)).until_end():
            raise asyncio.CancelledError

    with pytest.raises(TaskEnded):
        run(end())
    asyncio.run(be_cancelled())
    assert not watch(LastResort(tmp_path)).is_careful


async def test_an_exception_that_nobody_catches_is_no_explanation(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(_Defect), redelivered(LastResort(tmp_path)).until_end():
            _raise()
    assert watch(LastResort(tmp_path)).is_careful


@pytest.mark.long
def test_many_processes_make_the_file_at_once(tmp_path: Path) -> None:
    for folder in (tmp_path / str(number) for number in range(10)):
        waits, goes = os.pipe()
        children: list[int] = []
        for _ in range(16):
            children.append(os.fork())
            if not children[-1]:
                try:
                    os.close(goes)
                    os.read(waits, 1)  # until the last one is there
                    with capture_logs() as logs:
                        redelivered(LastResort(folder))
                    os._exit(any(line["event"] == "ends_not_kept" for line in logs))
                finally:
                    os._exit(2)
        os.close(waits)
        os.close(goes)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 16


async def test_records_of_two_brokers_are_kept_apart(tmp_path: Path) -> None:
    class Other:
        scope = "other:5672/"

    killed_in_a_run(tmp_path)
    assert watch(LastResort(tmp_path)).is_careful
    assert not LastResort(tmp_path).watch(Other(), QUEUE).is_careful
