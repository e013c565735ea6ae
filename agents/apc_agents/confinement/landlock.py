"""Landlock: rights to files that a process takes from itself (Linux 5.13 and newer).

Source: https://docs.kernel.org/userspace-api/landlock.html
"""

import ctypes
import os
from collections.abc import Sequence

from apc_agents.confinement.libc import libc, renounce_privileges

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls, the same on every architecture."""
ASK_VERSION = 1
RULE_PATH_BENEATH = 1

READ_FILE, READ_DIR = 1 << 2, 1 << 3
RIGHTS_BY_VERSION = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
"""Version -> the rights to files that it came with: run, write, read, remove and make; refer; truncate; ioctl."""
TCP_SINCE = 4
BIND_AND_CONNECT = 0b11


class _Ruleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64), ("handled_access_net", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def forbid_files(readable: Sequence[str]) -> bool:
    """Forbid opening files, except for reading below these folders; return False if the kernel has no Landlock."""
    version = libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ASK_VERSION)
    if version < 1:
        return False
    ruleset = libc.syscall(CREATE_RULESET, *_rules_of(version), 0)
    if ruleset < 0:
        return False
    try:
        for folder in readable:
            _allow_reading(ruleset, folder)
        return renounce_privileges() and bool(libc.syscall(RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _rules_of(version: int) -> tuple[object, ctypes.c_size_t]:
    rights = sum(right for since, right in RIGHTS_BY_VERSION.items() if since <= version)
    rules = _Ruleset(rights, BIND_AND_CONNECT if version >= TCP_SINCE else 0)
    size = ctypes.sizeof(rules) if version >= TCP_SINCE else ctypes.sizeof(ctypes.c_uint64)
    return ctypes.byref(rules), ctypes.c_size_t(size)


def _allow_reading(ruleset: int, folder: str) -> None:
    if not os.path.isdir(folder):
        return
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathBeneath(READ_FILE | READ_DIR, descriptor)
        libc.syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(descriptor)
