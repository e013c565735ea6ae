"""Errors of the bus.

ApcError
  BusError
    BusUnavailable        no node answers, or the credentials are refused
      CallAborted         a call was cancelled, and nobody here had asked for it: its connection is gone
    PublishError
      PublishUnroutable   no queue took the message; nothing is stored
      PublishRefused      the broker said no (nack, permission, missing exchange); nothing is stored
        PublishNotTaken   the queue is full, or its leader was not found; publish again to learn which
      PublishUnknown      time-out or lost channel: it may be stored; publishing it again is safe
    SubscriptionLost      the channel, connection or queue is gone; unacknowledged deliveries come again
    QueueMissing          no such queue: run `apc topology apply`
    DeadLetter            raised by a handler: give this delivery to the dead-letter exchange
    GiveBack              raised by a handler: leave this delivery until the consumer ends; then it comes again
    TopologyInvalid       shards or agents that no topology can be built for
    ShardsDiffer          APC_SHARDS is not the number of shards that the broker or the log has
    TopologyConflict      the broker holds this queue or exchange with other arguments
    ChaosProfileInvalid   a file that is no profile of `apc up --chaos`
    ArtifactError
      ArtifactMissing     no object with that hash
      ArtifactCorrupt     the bytes do not match the hash
      ArtifactTooLarge    more bytes than the store takes
    DatabaseUnavailable   Postgres does not answer, or refuses the credentials
      PoolerUnsuitable    a connection pooler in between loses prepared statements: transaction or statement mode
      DatabasePartAway    of several databases of the log one is away: DATABASE_AWAY
    StatementTooSlow      a statement took longer than it may; the server answers
    DatabaseNotDurable    committed rows may be lost: fsync, full_page_writes or synchronous_commit off
    TaskEnded             a task that runs until it is told to stop has ended without that
  SettingMisspelled       the environment has a name that is nearly a setting's
  TracingUnavailable      traces are to be exported, and the extra `otel` is not installed
"""

from collections.abc import Sequence

from apc_contracts.errors import ApcError
from apc_contracts.text import some_of


class BusError(ApcError):
    """The message bus failed."""


class BusUnavailable(BusError):
    """No broker node answers, or it refused the credentials."""


class CallAborted(BusUnavailable, ConnectionAbortedError):
    """A call was cancelled, and nobody here had asked for it.

    aiormq ends calls so when their connection is gone. It is an OSError as well: what waits for a broker or a database
    that is away waits for this one too.
    """


class PublishError(BusError):
    """A publish did not get its confirm."""


class PublishUnroutable(PublishError):
    """No queue took the message; nothing is stored."""


class PublishRefused(PublishError):
    """The broker refused the message; nothing is stored."""


class PublishNotTaken(PublishRefused):
    """A nack for a queue that has confirmed nothing on this channel: it is full, or its leader was not found.

    Measured with RabbitMQ 3.10: a channel that is opened while a queue's leader has just died nacks every publish to
    it, at once, until that node is back; a channel that is opened a moment later does not. The bus opens another
    one: publishing again tells what it is.
    """


class PublishUnknown(PublishError):
    """The confirm did not come: the message may be stored. Publishing it again is safe."""


class SubscriptionLost(BusError):
    """The consumer's channel, connection or queue is gone; unacknowledged deliveries come again."""


class QueueMissing(BusError):
    """The broker has no such queue: run `apc topology apply`."""


class DeadLetter(BusError):
    """A handler raises it to have its delivery dead-lettered instead of given back to the queue."""


class GiveBack(BusError):
    """A handler raises it to leave its delivery unsettled: it goes back to the queue when the consumer ends.

    For a worker that is stopping: a nack would hand the delivery to the same consumer again, until its delivery
    limit is used up.
    """


class TopologyInvalid(BusError):
    """The shards or agents given allow no topology."""


class ShardsDiffer(BusError):
    """APC_SHARDS of this process is not the number of shards that the broker has, or that open sessions were put by."""


class TopologyConflict(BusError):
    """The broker holds a queue or exchange of this name with other arguments."""


class ChaosProfileInvalid(BusError):
    """A file that is no chaos profile; names the field and how to mend it."""


class ArtifactError(BusError):
    """The artifact store failed."""


class ArtifactServiceAway(ArtifactError):
    """The service that takes artifacts does not answer, or cannot take one now; a later attempt may succeed."""


class ArtifactMissing(ArtifactError):
    """No artifact with that hash."""


class ArtifactCorrupt(ArtifactError):
    """The stored bytes do not match the hash."""


class ArtifactTooLarge(ArtifactError):
    """The artifact has more bytes than the store takes."""


class DatabaseUnavailable(BusError):
    """Postgres does not answer, or refuses the credentials."""


class PoolerUnsuitable(DatabaseUnavailable):
    """A connection pooler stands in between and lends connections by transactions: prepared statements are lost."""

    fault = (
        "APC_DATABASE_URL leads to a connection pooler in transaction or statement mode, which loses prepared "
        "statements and settings between transactions"
    )
    remedy = "set `pool_mode = session` for this database in pgbouncer.ini, or name PostgreSQL itself"

    def __init__(self, shown_by: str = "") -> None:
        super().__init__(f"{self.fault}: {self.remedy}{f' ({shown_by})' if shown_by else ''}")


class DatabasePartAway(DatabaseUnavailable):
    """Of several databases of the log one does not answer: a reading that needs its shards is an error."""

    def __init__(self, names: Sequence[str], shards: Sequence[int], reason: str) -> None:
        """Name the database, or those of which it is one, and the shards there."""
        which = " or ".join(names)
        held = f"shard {some_of([str(one) for one in shards])}" if shards else "no shard"
        super().__init__(
            f"part of the log is away: database {which}, which has {held}, does not answer ({reason}). Start it, or "
            "read sessions of other shards"
        )
        self.names = tuple(names)
        self.shards = tuple(shards)


class StatementTooSlow(BusError, TimeoutError):
    """What was done over a connection took longer than it may, and was cancelled; the server answers."""


class DatabaseNotDurable(BusError):
    """The server may lose committed rows: fsync, full_page_writes or synchronous_commit is off."""


class TaskEnded(BusError):
    """A task that runs until it is told to stop has ended without that."""


class TracingUnavailable(ApcError):
    """APC_OTLP_ENDPOINT is set, and what exports traces is not installed: pip install 'apc-bus[otel]'."""


class SettingMisspelled(ApcError):
    """The environment has a name that is nearly the name of a setting."""

    def __init__(self, name: str, meant: str) -> None:
        super().__init__(f"{name} is no setting: do you mean {meant}? Correct it, or unset {name}")
        self.name = name
        self.meant = meant
