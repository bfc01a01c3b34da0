"""Limits that the kernel enforces on a process of the sandbox."""

import resource

_LIMITS = (
    (resource.RLIMIT_CPU, 5),
    (resource.RLIMIT_AS, 1024**3),
    (resource.RLIMIT_FSIZE, 1024**2),
    (resource.RLIMIT_NOFILE, 64),
    (resource.RLIMIT_CORE, 0),
    # No processes and no threads. The kernel exempts root.
    (resource.RLIMIT_NPROC, 0),
)


def limit() -> None:
    """Set them, for good."""
    for what, most in _LIMITS:
        resource.setrlimit(what, (most, most))
