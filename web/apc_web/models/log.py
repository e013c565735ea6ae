"""The log itself: heads, checkpoints, and what the server is."""

from datetime import datetime
from typing import Literal

from pydantic import Field, SecretStr

from apc_web.models.model_base import ApiModel
from apc_web.models.timeline import FoldEntry


class ShardCheckpoint(ApiModel):
    """The end of one shard's log."""

    shard: int
    epoch: int
    next_seq: int
    tree_size: int | None
    root_hash: str | None
    """Base64."""
    note: str | None
    """The newest signed checkpoint."""
    recorded_at: datetime | None
    exported: int | None
    """Size of the newest checkpoint at an export place."""
    exported_at: datetime | None


class CheckpointList(ApiModel):
    """Heads and newest checkpoints, by shard."""

    items: list[ShardCheckpoint]


class ConsistencyProof(ApiModel):
    """The file that `apc log consistency` writes and `apc log check` verifies (docs/reference/log-format.md)."""

    format: str
    version: int
    key: str
    """The log's public key as this server knows it."""
    old: str
    """The earlier checkpoint, a signed-note."""
    new: str
    """The later one."""
    path: list[str]
    """SHA-256 in hex, RFC 9162 section 2.1.4."""


class VerificationFinding(ApiModel):
    """Something that does not fit."""

    shard: int | None
    """null where it is about no single one."""
    seq: int
    """The first entry that it can be about."""
    message: str
    place: str


class LogVerification(ApiModel):
    """A verification of the log against its tree, its stored checkpoints and its sessions."""

    state: Literal["none", "running", "done", "failed", "cancelled"]
    """none: there was none since the server started."""
    by: str | None = None
    """Who started it."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    entries: int = 0
    """That were recomputed."""
    total: int = 0
    """Entries that there are to recompute."""
    is_whole: bool | None = None
    """Whether everything fits; null until it is done."""
    findings: list[VerificationFinding] = Field(default_factory=list)
    """At most 100."""
    unlisted: int = 0
    """Findings beyond those."""
    words: str | None = None
    """Why it failed, one sentence."""
    why_not: str | None = None
    """Why this server cannot verify, one sentence; null when it can."""


class ServerAbout(ApiModel):
    """What this server is, and what the caller may do here."""

    version: str
    can_act: bool
    why_not: str | None
    """Why there are no acts, one sentence."""
    can_chat: bool
    why_no_chat: str | None
    """Why there is nobody to talk to, one sentence."""
    database: str
    """embedded or server."""
    user: str
    """Who asks; `local` on a server without accounts."""
    role: str
    """viewer, reader or operator."""
    has_accounts: bool
    run_id: str | None
    """The run that `apc ui --run` was given."""


class LoginRequest(ApiModel):
    """Who logs in."""

    name: str = Field(max_length=64)
    password: SecretStr = Field(max_length=1_024)


class StreamEntries(ApiModel):
    """The data of an event `entries`."""

    heads: dict[str, int]
    """Shard -> the last seq that was sent; as JSON it is the event's id, too."""
    items: list[FoldEntry]
    """In the order of the log within each shard."""


class StreamReset(ApiModel):
    """The data of an event `reset`: the client is too far behind; reload, and go on from `heads`."""

    heads: dict[str, int]


class StreamState(ApiModel):
    """The data of an event `state`: whether the database answers; nothing that comes after it is lost."""

    is_readable: bool
