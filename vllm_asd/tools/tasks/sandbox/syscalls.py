"""A seccomp filter: system calls that a process of the sandbox never makes again, root or not.

It may start no process and no thread, run no other program, open no socket, signal no one, and neither trace
nor read other processes.
"""

import os
import platform
import struct
import sys

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 4, 22, 38
_SECCOMP_MODE_FILTER = 2
_KILL, _REFUSE, _ALLOW = 0x80000000, 0x00050001, 0x7FFF0000  # refused calls fail with EPERM
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4  # in struct seccomp_data
_X32 = 0x40000000

# From asm/unistd_64.h and asm-generic/unistd.h of Linux 6.1; those above 423 are the same everywhere.
_EVERYWHERE = (424, 425, 434, 435, 438)  # pidfd_send_signal, io_uring_setup, pidfd_open, clone3, pidfd_getfd
_CALLS = {
    "x86_64": {
        "socket": 41, "socketpair": 53, "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "kill": 62,
        "ptrace": 101, "rt_sigqueueinfo": 129, "mount": 165, "tkill": 200, "tgkill": 234, "add_key": 248,
        "request_key": 249, "keyctl": 250, "unshare": 272, "rt_tgsigqueueinfo": 297, "perf_event_open": 298,
        "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "bpf": 321, "execveat": 322,
        "userfaultfd": 323,
    },
    "aarch64": {
        "mount": 40, "unshare": 97, "ptrace": 117, "kill": 129, "tkill": 130, "tgkill": 131,
        "rt_sigqueueinfo": 138, "socket": 198, "socketpair": 199, "add_key": 217, "request_key": 218,
        "keyctl": 219, "clone": 220, "execve": 221, "rt_tgsigqueueinfo": 240, "perf_event_open": 241,
        "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "bpf": 280, "execveat": 281,
        "userfaultfd": 282,
    },
}  # fmt: skip
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def forbid() -> None:
    """Install the filter, for good.

    Raises:
        OSError: The kernel refuses.
        ImportError: This Python has no ctypes.
        KeyError: The numbers of this machine's system calls are not in the table.
    """
    import ctypes  # what follows takes it away again

    program = _program(platform.machine())
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = ctypes.create_string_buffer(program)
    # struct sock_fprog: unsigned short, padding, pointer.
    head = ctypes.create_string_buffer(struct.pack("HP", len(program) // 8, ctypes.addressof(instructions)))
    for arguments in (
        # Nobody else's memory can be reached through /proc either, unless one is root.
        (_PR_SET_DUMPABLE, 0, 0, 0, 0),
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(head), 0, 0),
    ):
        if libc.prctl(*(ctypes.c_ulong(argument) for argument in arguments)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    for name in [name for name in sys.modules if name.partition(".")[0] in ("ctypes", "_ctypes")]:
        del sys.modules[name]


def _program(machine: str) -> bytes:
    """The filter in classic BPF: a wrong architecture kills, a number in the table fails, others pass."""
    numbers = (*_CALLS[machine].values(), *_EVERYWHERE)
    steps = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_IF_EQUAL, 1, 0, _ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        # On x86_64 the same calls have a second set of numbers.
        (_IF_AT_LEAST, len(numbers) + 1, 0, _X32),
        *((_IF_EQUAL, len(numbers) - place, 0, number) for place, number in enumerate(numbers)),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)
