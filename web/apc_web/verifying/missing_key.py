"""Whether this server has the log's key, which checkpoints are compared with."""

from apc_bus.settings import LogKeySettings
from apc_persister.errors import LogKeyMissing, LogKeyUnusable, PreviousKeyUnusable
from apc_persister.evidence.checkpoint import load_signer

NO_KEY = (
    "this server has no key of the log to check its checkpoints with: run `apc log verify` where the key is, "
    "or start the server with APC_LOG_KEY_FILE"
)

BAD_KEY = "the key of the log on this server cannot be used: the message of `apc log verify` there says why"


def why_no_key() -> str | None:
    """Return why this server cannot verify, one sentence; None when it has the key."""
    try:
        load_signer(LogKeySettings())
    except LogKeyMissing:  # its own remedy, a new key, would make every checkpoint wrong
        return NO_KEY
    except (LogKeyUnusable, PreviousKeyUnusable):  # their words name files
        return BAD_KEY
    return None
