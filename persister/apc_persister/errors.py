"""Errors of the persister.

ApcError
  LogError
    LogStopped            what only an operator can mend: the writer of this shard stops, unacknowledged
      BatchGap            a batch number is missing
      EpochUnknown        a batch of an epoch that the database never gave
      BatchUnsupported    a batch format of another release
      BatchEndsWriter     a message that has ended writers while it was alone
      ShardMismatch       a batch of another shard on this shard's queue
      TreeBroken          rows and Merkle tree do not fit
        EntryForeign      an entry that no batch of an orchestrator brought
    SchemaMissing         the database is not migrated, or to an older revision
    SchemaUnknown         the database was migrated by a newer release
    SchemaRetired         the database was migrated by a version from before the first release
    DatabaseMisnamed      a URL leads to another database of the log than the setting says
    MoveImpossible        a shard cannot be placed or moved as asked
    RebuildImpossible     entries were released from the database, and projections follow from them
    ProjectionIncomplete  the same, of a projection that begins
    PoolTooSmall          every writer holds one connection; there must be one more
    EmbeddedUnavailable   the embedded PostgreSQL did not start
    LogKeyMissing         no key to sign checkpoints with
    LogKeyUnusable        it cannot be read, or is no Ed25519 key
    ProofImpossible       there is nothing to prove, or not yet
    ExportFailed          checkpoints could not be brought outside
    SubjectUnknown        there is no key of that subject: nothing to erase
"""

from pathlib import Path

from apc_bus.last_resort import FILE
from apc_bus.settings.database import HOME
from apc_log.errors import LogError


class LogStopped(LogError):
    """The writer of a shard stopped: it neither skips nor acknowledges what it cannot place."""

    def __init__(self, shard: int, message: str) -> None:
        super().__init__(f"log of shard {shard} stopped: {message}")
        self.shard = shard


class BatchGap(LogStopped):
    """Batches are missing between the log's head and what the queue delivered."""

    def __init__(self, shard: int, epoch: int, expected: int, found: int) -> None:
        super().__init__(
            shard,
            f"epoch {epoch} expects batch {expected} and got {found}; a confirmed batch is missing: bring "
            "it back in front of this one (broker backup, dead letters), nothing is skipped",
        )
        self.epoch = epoch
        self.expected = expected
        self.found = found


class EpochUnknown(LogStopped):
    """A batch of an epoch that this database never gave: most likely an older backup was restored."""

    def __init__(self, shard: int, known: int, found: int) -> None:
        super().__init__(shard, f"the database knows epoch {known} and the batch says {found}; was a backup restored?")
        self.known = known
        self.found = found


class BatchUnsupported(LogStopped):
    """A batch format of another release: run the persister of the orchestrator's release."""

    def __init__(self, shard: int, version: object) -> None:
        super().__init__(shard, f"batch format {version!r} is not ours; run the persister of the gate's release")
        self.version = version


class BatchEndsWriter(LogStopped):
    """A message that has ended the writer, or its process, each time that it was alone there."""

    def __init__(self, shard: int) -> None:
        super().__init__(
            shard,
            "the next message has ended the writer each time it was alone; nothing is skipped: run a release that is "
            f"mended, and remove {FILE} from APC_DATA_DIR first, or wait an hour",
        )


class ShardMismatch(LogStopped):
    """A batch of another shard on this shard's queue: the topology is not the one that the orchestrator uses."""

    def __init__(self, shard: int, found: int) -> None:
        super().__init__(shard, f"its queue delivered a batch of shard {found}; check APC_SHARDS and the topology")
        self.found = found


class TreeBroken(LogStopped):
    """Rows are missing that the tree must have, or the tree has what the log has not: run `apc log verify`."""

    def __init__(self, shard: int, message: str) -> None:
        super().__init__(shard, f"{message}; run `apc log verify`: somebody changed the log, or a backup is incomplete")


class EntryForeign(TreeBroken):
    """An entry behind the last checkpoint that neither a batch of an orchestrator brought nor the guard recorded."""

    def __init__(self, shard: int, seq: int, reason: str) -> None:
        self.finding = f"entry {seq}, behind the last checkpoint, {reason}"
        super().__init__(shard, self.finding)
        self.seq = seq


class SchemaMissing(LogError):
    """The database lacks the schema of this release: run `apc migrate`."""

    def __init__(self, found: str | None) -> None:
        is_at = "has no log schema" if found is None else f"is at schema revision {found}"
        super().__init__(f"the database {is_at}: run `apc migrate`")
        self.found = found


class SchemaUnknown(LogError):
    """The database holds a schema revision that this release does not know: upgrade apc-bus."""

    def __init__(self, revision: str) -> None:
        super().__init__(f"the database is at schema revision {revision}, newer than this release: upgrade apc-bus")
        self.revision = revision


class SchemaRetired(LogError):
    """The database holds a schema revision from before the first release: make a new database."""

    def __init__(self, revision: str) -> None:
        super().__init__(
            f"the database is at schema revision {revision}, from before the first release: keep it for reading with "
            "the commit that made it, and give APC_DATABASE_URL a new database"
        )
        self.revision = revision


class DatabaseMisnamed(LogError):
    """A URL leads to another database of the log than the setting says, or to one that holds another log."""

    def __init__(self, name: str, found: str) -> None:
        setting = "APC_DATABASE_URL" if name == HOME else f"APC_DATABASES: {name!r}"
        held = "the home of a log that has shards" if found == HOME else f"the database {found!r} of a log"
        super().__init__(f"{setting} leads to {held}: give the URL of {name!r}, or of a new database")
        self.name = name
        self.found = found


class MoveImpossible(LogError):
    """A shard cannot be placed in a database, or moved there, as asked."""


class RebuildImpossible(LogError):
    """Projections cannot be made of the entries that the database still has."""

    def __init__(self) -> None:
        super().__init__(
            "segments were released from the database: a rebuild would lose what their entries say in lists, search "
            "and figures; restore a backup from before, or mend the named rows by hand"
        )


class ProjectionIncomplete(LogError):
    """A projection of this release begins, and entries that it follows from were released from the database."""

    def __init__(self, name: str, shard: int, last: int) -> None:
        super().__init__(
            f"projection {name} begins, and entries 1 to {last} of shard {shard} were released from the database: it "
            "would lack what they say; restore a backup from before the release, or, to let it begin behind them: "
            "INSERT INTO apc_log.followed (projection, shard, seq) "
            f"VALUES ('{name}', {shard}, {last})"
        )


class PoolTooSmall(LogError):
    """Every writer holds one connection of the pool and the checks need one more: set APC_DATABASE_POOL."""

    def __init__(self, size: int, shards: int) -> None:
        super().__init__(f"{shards} writers do not fit a pool of {size}: set APC_DATABASE_POOL to {shards + 2}")
        self.size = size
        self.shards = shards


class EmbeddedUnavailable(LogError):
    """The embedded PostgreSQL did not start."""


class LogKeyMissing(LogError):
    """There is no key to sign the log's checkpoints with."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"no key to sign the log's checkpoints: {path} does not exist; make it once with "
            "`apc log key --create`, or set APC_LOG_KEY_FILE or APC_LOG_KEY"
        )
        self.path = path


class PreviousKeyUnusable(LogError):
    """A key that signed the log before cannot be read."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"APC_LOG_PREVIOUS_KEYS: {reason}; write the keys as `apc log key` printed them")


class LogKeyUnusable(LogError):
    """The signing key cannot be read or written, or is no Ed25519 key."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"the log's signing key {where} cannot be used: {reason}; it must be Ed25519 in PEM (PKCS8)")
        self.where = where


class ExportFailed(LogError):
    """Checkpoints could not be brought to the place outside the database."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(f"cannot export checkpoints to {target}: {reason}; check APC_CHECKPOINTS_URL")
        self.target = target
        self.reason = reason


class ProofImpossible(LogError):
    """What was to be proven is not in the log, or not in its tree yet."""


class SubjectUnknown(LogError):
    """There is no key of that subject: nothing of it is in the log, or nothing that is encrypted."""

    def __init__(self, subject: str) -> None:
        super().__init__(
            f"there is no key of subject {subject!r}: nothing of it is in the log, it was erased before, or it was "
            "stored without APC_ENCRYPT_BODIES"
        )
        self.subject = subject
