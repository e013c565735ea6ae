"""Asks the broker whether a user and a password are good: the broker alone knows the users of agents."""

import asyncio

import aiormq
from aiormq.abc import AbstractConnection
from aiormq.exceptions import (
    AMQPConnectionError,
    AMQPError,
    AuthenticationError,
    ConnectionNotAllowed,
    InvalidFrameError,
    ProbableAuthenticationError,
)
from yarl import URL

from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.errors import BusUnavailable
from apc_bus.settings import BusSettings

_REFUSED = (ProbableAuthenticationError, AuthenticationError, ConnectionNotAllowed, InvalidFrameError)
"""A virtual host that is not granted arrives as an unexpected frame."""


async def _leave(connection: AbstractConnection, patience: float) -> None:
    """Close the connection; the answer is known, whatever becomes of it."""
    try:
        with unasked_cancel_fails():
            async with asyncio.timeout(patience):
                await connection.close()
    except (AMQPError, OSError, RuntimeError, TimeoutError):
        pass


async def may_log_in(settings: BusSettings, user: str, password: str) -> bool:
    """Return whether the broker of APC_AMQP_URL lets this user in with this password.

    Raises:
        BusUnavailable: no node answers.
    """
    for node in settings.amqp_nodes:
        url = URL(node).with_user(user).with_password(password)
        try:
            with unasked_cancel_fails():
                async with asyncio.timeout(settings.connect_timeout.total_seconds()):
                    connection = await aiormq.connect(url)
        except _REFUSED:
            return False
        except (AMQPConnectionError, AMQPError, OSError, TimeoutError):
            continue
        await _leave(connection, settings.connect_timeout.total_seconds())
        return True
    raise BusUnavailable("no broker node answers: logins cannot be checked; see APC_AMQP_URL")
