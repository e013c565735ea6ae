"""A server listens before it tells its address: nobody is sent to another process with a token."""

import socket
from pathlib import Path

import pytest
from tests.support.apc_command import ApcCommand

from apc_contracts.errors import InputUnusable
from apc_web.http import open_listeners

HOST = "127.0.0.1"


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def test_a_port_that_is_taken_is_refused_or_left_for_a_free_one() -> None:
    with open_listeners(HOST, 0) as [taken]:
        port = port_of(taken)
        with pytest.raises(InputUnusable, match=f"--listen {HOST}:{port}: "), open_listeners(HOST, port):
            pass
        with open_listeners(HOST, port, or_free_port=True) as [free]:
            assert port_of(free) not in (0, port)
    with open_listeners(HOST, port) as [again]:
        assert port_of(again) == port


def test_who_connects_before_the_server_runs_is_kept_waiting() -> None:
    with open_listeners("localhost", 0) as listeners:
        address = listeners[0].getsockname()[:2]
        with socket.create_connection(address) as client:
            assert client.getpeername()[:2] == address


def test_the_console_prints_no_link_where_another_process_listens(tmp_path: Path) -> None:
    with open_listeners(HOST, 0) as [taken]:
        port = port_of(taken)
        ended = ApcCommand(tmp_path)("ui", "--no-browser", "--listen", f"{HOST}:{port}")

    assert ended.returncode == 2
    assert ended.stderr == f"apc: --listen {HOST}:{port}: Address already in use; name another port or address\n"
    assert list(tmp_path.rglob("*.html")) == []
