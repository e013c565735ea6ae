"""Names that a process holds while it lives, however it ends."""

import os
import signal
from pathlib import Path

import pytest

from apc_bus.last_resort import claim, is_held, release


def asked_elsewhere(file: Path, name: str) -> bool:
    """Ask in another process, which holds nothing itself."""
    child = os.fork()
    if not child:
        try:
            os._exit(is_held(file, name))
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "claims"


def test_a_name_is_held_until_it_is_released(file: Path) -> None:
    name, other = claim(file), claim(file)
    assert is_held(file, name)
    release(file, name)
    release(file, name)
    assert not is_held(file, name) and is_held(file, other)
    assert claim(None) != claim(None)
    assert not is_held(None, name)


def test_a_name_is_held_by_the_process_that_claimed_it_until_it_is_killed(file: Path) -> None:
    told, tells = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(tells, claim(file).encode())
            signal.pause()
        finally:
            os._exit(1)
    name = os.read(told, 100).decode()
    assert is_held(file, name)
    assert asked_elsewhere(file, name) and is_held(file, name), "asking takes nothing away"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert not is_held(file, name)


def test_a_child_process_does_not_keep_the_names_of_its_parent(file: Path) -> None:
    told, tells = os.pipe()
    waits, ends = os.pipe()
    parent = os.fork()
    if not parent:
        try:
            name = claim(file)
            if os.fork():
                signal.pause()
            os.close(ends)
            os.write(tells, name.encode())
            os.read(waits, 1)  # it outlives its parent
        finally:
            os._exit(1)
    name = os.read(told, 100).decode()
    assert is_held(file, name)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert not is_held(file, name)
    os.close(ends)
