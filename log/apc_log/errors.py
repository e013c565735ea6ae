"""Errors of the log.

ApcError
  LogError                the log failed; apc_persister.errors has those of writing and proving
    DatabaseUnknown       a shard is in a database that APC_DATABASES does not name
    BundleUnreadable      a file that is no bundle of a run
    ArchiveError          the archive cannot be used
      ArchiveUnavailable  a segment, or an object of it, cannot be read: ARCHIVE_UNAVAILABLE
      ArchiveDiffers      an object is not the one that was archived
      ArchiveTooLarge     more of it fits than is read for one search
    DatabasesUnjoinable   the databases of the log cannot be read as one
  BodyUnreadable          an encrypted body and the available keys do not fit
  SearchUnusable          there is nothing to search for, or too much
"""

from apc_contracts.errors import ApcError


class LogError(ApcError):
    """The log failed."""


class DatabaseUnknown(LogError):
    """A shard is in a database that the settings of this process do not name."""

    def __init__(self, shard: int, name: str) -> None:
        super().__init__(f"shard {shard} is in database {name!r}, which APC_DATABASES does not name: add it there")
        self.shard = shard
        self.name = name


class BundleUnreadable(LogError):
    """A file that is no bundle of a run."""


class BodyUnreadable(ApcError):
    """An encrypted body cannot be read with the available keys, which is not the same as erased."""


class SearchUnusable(ApcError):
    """What is asked cannot be searched for."""


class DatabasesUnjoinable(LogError):
    """The databases of the log cannot be read as one."""


NOT_JOINED = "the databases of APC_DATABASES are not read together yet: run `apc migrate`"
"""What DatabasesUnjoinable says where nobody has joined them."""


class ArchiveError(LogError):
    """The archive of the log cannot be used."""


class ArchiveUnavailable(ArchiveError):
    """A segment of the archive, or an object of it, cannot be read: what it holds is not left out, but an error."""

    code = "ARCHIVE_UNAVAILABLE"

    def __init__(self, segment: str, name: str | None, problem: str) -> None:
        """Name the segment by its place, the object if it is about one, and the problem."""
        super().__init__(f"{self.code}: {segment}{f'/{name}' if name else ''}: {problem}")
        self.segment = segment
        self.name = name
        self.problem = problem


class ArchiveDiffers(ArchiveError):
    """An object of the archive is not the one that was archived: other bytes, an older version, another segment's."""

    def __init__(self, segment: str, name: str, problem: str) -> None:
        """Name the segment by its place, the object, and the problem."""
        super().__init__(f"{segment}/{name}: {problem}")
        self.segment = segment
        self.name = name
        self.problem = problem


class ArchiveTooLarge(ArchiveError):
    """More packets of the archive fit than are read for one search."""
