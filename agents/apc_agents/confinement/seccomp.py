"""A filter of system calls: no sockets, no new processes or programs, no reach into other processes.

Source: https://docs.kernel.org/userspace-api/seccomp_filter.html; a program of the classic BPF.
"""

import ctypes
import errno
import platform
from collections.abc import Sequence

from apc_agents.confinement.libc import libc, renounce_privileges

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
