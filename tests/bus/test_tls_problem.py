"""What is wrong with TLS, found in a chain of errors."""

import pytest

from apc_bus.tls import TlsSpoken, tls_problem


def test_the_cause_behind_other_errors_is_named() -> None:
    try:
        try:
            raise TlsSpoken
        except TlsSpoken as spoken:
            raise ConnectionError("closed") from spoken
    except ConnectionError as error:
        said = tls_problem(error, "APC_AMQP")
    assert said is not None and "speaks TLS" in said


@pytest.mark.timeout(20)
def test_a_ring_of_errors_has_an_end() -> None:
    first, second = ConnectionError("reset"), OSError("again")
    first.__cause__, second.__context__ = second, first
    assert tls_problem(first, "APC_AMQP") is None
    second.__context__ = TlsSpoken()
    assert "speaks TLS" in (tls_problem(first, "APC_AMQP") or "")
