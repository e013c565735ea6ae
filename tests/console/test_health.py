"""The pages of a service."""

import socket
from collections.abc import Iterator
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from apc_console.errors import InputUnusable
from apc_console.health import serve_health


@pytest.fixture
def port() -> int:
    """A port that nobody uses."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        number: int = taken.getsockname()[1]
        return number


def ask(port: int, path: str) -> int:
    """The status of a page."""
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            status: int = answer.status
            return status
    except HTTPError as error:
        with error:
            return error.code


def test_ready_is_what_holds_now_and_startup_what_held_once(port: int) -> None:
    answers: Iterator[bool] = iter((False, False, True, False))

    with serve_health(port, lambda: next(answers)):
        assert ask(port, "/healthz") == 200
        assert ask(port, "/readyz") == 503
        assert ask(port, "/startup") == 503
        assert ask(port, "/readyz") == 200
        assert ask(port, "/readyz") == 503
        assert ask(port, "/startup") == 200


def test_metrics_and_unknown_pages(port: int) -> None:
    with serve_health(port, lambda: True):
        assert ask(port, "/metrics") == 200
        assert ask(port, "/nothing") == 404


def test_without_a_port_there_are_no_pages(port: int) -> None:
    with serve_health(None, lambda: True), socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0


def test_a_taken_port_is_named(port: int) -> None:
    with serve_health(port, lambda: True):
        with pytest.raises(InputUnusable, match=str(port)), serve_health(port, lambda: True):
            pass
