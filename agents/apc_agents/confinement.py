"""The C library, for calls of the kernel that Python has no name for."""

import ctypes
import errno
import os
import platform
import resource
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

PR_SET_NO_NEW_PRIVS = 38

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def renounce_privileges() -> bool:
    """Forbid that a started program gains rights; the kernel requires this before it accepts filters."""
    return bool(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)


# A network of this process's own, with nothing in it.

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000


def leave_network() -> bool:
    """Move to an empty network namespace; False where the kernel or the container does not allow it.

    A process with several threads cannot: call it before a library starts some.
    """
    return bool(libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0)


# Limits that the kernel counts: memory, files, processes, time.


def bound(memory_bytes: int, open_files: int) -> bool:
    """Limit memory and open files; forbid growing files, core dumps and new processes."""
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_NOFILE: open_files,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,
    }
    return all([_lower(which, limit) for which, limit in limits.items()])


def allow_cpu_seconds(seconds: int) -> None:
    """Allow this process this much CPU time from now on; then the kernel kills it. May be called again."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    allowed = int(used.ru_utime + used.ru_stime) + 1 + seconds
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CPU, (allowed if hard == resource.RLIM_INFINITY else min(allowed, hard), hard))


def _lower(which: int, limit: int) -> bool:
    _, hard = resource.getrlimit(which)
    lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    try:
        resource.setrlimit(which, (lowest, lowest))
    except (OSError, ValueError):
        return False
    return True


# Landlock: rights to files that a process takes from itself (Linux 5.13 and newer).
#
# Source: https://docs.kernel.org/userspace-api/landlock.html

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


# A filter of system calls: no sockets, no new processes or programs, no reach into other processes.
#
# Source: https://docs.kernel.org/userspace-api/seccomp_filter.html; a program of the classic BPF.

PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
ALLOW, REFUSE, END = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
LOAD, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
OFFSET_OF_CALL, OFFSET_OF_ARCHITECTURE = 0, 4
FIRST_X32_CALL = 0x40000000
"""The second table of calls of x86_64; no other architecture has numbers so large."""

SHARED = (424, 425, 434, 435, 438)
"""pidfd_send_signal, io_uring_setup, pidfd_open, clone3, pidfd_getfd: the same numbers everywhere."""
ARCHITECTURES = {
    # socket socketpair; clone fork vfork execve execveat; kill tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo;
    # ptrace process_vm_readv process_vm_writev; unshare setns mount bpf keyctl; shmget msgget
    "x86_64": (
        0xC000003E,
        (41, 53, 56, 57, 58, 59, 322, 62, 200, 234, 129, 297, 101, 310, 311, 272, 308, 165, 321, 250, 29, 68),
    ),
    "aarch64": (
        0xC00000B7,
        (198, 199, 220, 221, 281, 129, 130, 131, 138, 240, 117, 270, 271, 97, 268, 40, 280, 219, 194, 186),
    ),
}
"""machine -> (AUDIT_ARCH, the calls that are refused)."""


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


def forbid_calls() -> bool:
    """Refuse those calls (EPERM) from now on; False on other machines and where the kernel has no filters."""
    if platform.machine() not in ARCHITECTURES:
        return False
    instructions = _program(*ARCHITECTURES[platform.machine()])
    program = _Program(len(instructions), instructions)
    return renounce_privileges() and bool(
        libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0
    )


def _program(architecture: int, calls: Sequence[int]) -> "ctypes.Array[_Instruction]":
    refused = (*calls, *SHARED)
    body = [
        (LOAD, 0, 0, OFFSET_OF_ARCHITECTURE),
        (JUMP_IF_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, END),
        (LOAD, 0, 0, OFFSET_OF_CALL),
        (JUMP_IF_AT_LEAST, len(refused) + 1, 0, FIRST_X32_CALL),
        *((JUMP_IF_EQUAL, len(refused) - at, 0, call) for at, call in enumerate(refused)),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE),
    ]
    return (_Instruction * len(body))(*(_Instruction(*one) for one in body))


# One call that takes from this process the network, the files, other processes, and memory without end.


@dataclass(frozen=True)
class ProcessLimits:
    """What the process may use from now on."""

    memory_bytes: int
    """Address space in all, what is taken already included."""
    open_files: int = 64


def confine(limits: ProcessLimits, readable: Sequence[str] = ()) -> tuple[str, ...]:
    """Give up what a computation does not need; returns what this machine does not let a process give up.

    Args:
        readable: folders below which files may still be read; nothing can be written, made or run.

    Returns:
        Of "memory", "files", "network" and "processes" those that stay open, the empty tuple at best.
    """
    if sys.platform != "linux":
        return ("memory", "files", "network", "processes")

    has_own_network = leave_network()
    is_bounded = bound(limits.memory_bytes, limits.open_files)
    has_no_files = forbid_files(readable)
    has_no_calls = forbid_calls()
    given_up = {
        "memory": is_bounded,
        "files": has_no_files,
        "network": has_own_network or has_no_calls,
        "processes": has_no_calls,
    }
    return tuple(name for name, is_given_up in given_up.items() if not is_given_up)
