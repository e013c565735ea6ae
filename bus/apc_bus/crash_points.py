"""Named points at which a test kills this process, as a power cut would: no handler, no flush, no goodbye.

`APC_CRASH_AT=persister.after_commit` kills at the first time that point is reached,
`APC_CRASH_AT=persister.after_commit:3` at the third. Without the variable a point costs one comparison.
The one place beside settings that reads the environment: it must work in any process, before any settings.
"""

import os
import signal
from collections import Counter

_name, _, _count = os.environ.get("APC_CRASH_AT", "").partition(":")
_times = int(_count) if _count else 1
_reached: Counter[str] = Counter()


def crash_point(name: str) -> None:
    """Kill this process with SIGKILL if APC_CRASH_AT says so."""
    if name != _name:
        return
    _reached[name] += 1
    if _reached[name] == _times:
        os.kill(os.getpid(), signal.SIGKILL)
