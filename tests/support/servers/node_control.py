"""The commands of a RabbitMQ node, from any process that has its name and cookie."""

import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from apc_bus.errors import BusUnavailable

PATIENCE_SECONDS = 90.0
_DELETE_VHOST = 'rabbit_vhost:delete({name}, <<"tests">>)'
_ADD_VHOST = (
    'begin rabbit_vhost:add({name}, <<"tests">>), rabbit_auth_backend_internal:set_permissions('
    '<<"{user}">>, {name}, <<".*">>, <<".*">>, <<".*">>, <<"tests">>) end'
)


def vhost_changes(gone: Iterable[str], new: Iterable[str], user: str = "guest") -> str:
    """Return the Erlang terms that delete and make virtual hosts; the user gets every right in the new ones.

    In one call: rabbitmqctl takes a second to start, on a busy machine several.
    """
    calls = [
        *(_DELETE_VHOST.format(name=f'<<"{name}">>') for name in gone),
        *(_ADD_VHOST.format(name=f'<<"{name}">>', user=user) for name in new),
    ]
    return ", ".join(calls) + "."


@dataclass(frozen=True, slots=True)
class NodeControl:
    """What rabbitmqctl needs for one node; of plain values, so that another process can be given it.

    Attributes:
        scripts: the folder with RabbitMQ's inner scripts.
        name: the node's.
        environment: with the home folder that holds its cookie, and its port mapper.
    """

    scripts: str
    name: str
    environment: Mapping[str, str]

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl against the node; returns what it prints.

        Raises:
            BusUnavailable: the command failed, or did not end; the message holds its output.
        """
        return self.run("rabbitmqctl", *arguments)

    def run(self, program: str, *arguments: str) -> str:
        """Run a program of RabbitMQ against the node, as `ctl` does; `rabbitmq-queues` for one."""
        try:
            result = subprocess.run(
                [f"{self.scripts}/{program}", "--quiet", "--node", self.name, *arguments],
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise BusUnavailable(f"{program} {arguments[0]} did not end in {PATIENCE_SECONDS:g} s") from error
        if result.returncode != 0:
            raise BusUnavailable(f"{program} {arguments[0]} failed: {result.stdout}{result.stderr}")
        return result.stdout.strip()

    def change_vhosts(self, gone: Iterable[str], new: Iterable[str]) -> None:
        """Delete and make virtual hosts in one call; the user guest gets every right in the new ones."""
        self.ctl("eval", vhost_changes(gone, new))
