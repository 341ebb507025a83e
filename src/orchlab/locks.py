"""Locks between orchlab processes of one user."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator

from orchlab.errors import TimeLimitReached
from orchlab.paths import private_folder, state_home


@contextlib.contextmanager
def locked(name: str, seconds: float, progress: Callable[[str], None] | None = None) -> Iterator[None]:
    """An flock that ends with its holder; its file goes when the last one leaves."""
    path = private_folder(state_home()) / f"{name}.lock"
    deadline = time.monotonic() + seconds
    told = False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The file may have been removed between open and lock: then this lock guards nothing.
            if os.path.exists(path) and os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                break
            os.close(descriptor)
            continue
        except BlockingIOError:
            os.close(descriptor)
        if time.monotonic() > deadline:
            raise TimeLimitReached(f"another orchlab has been changing {name!r} for over {seconds:.0f} s", "wait for it, or end it (ps -ef | grep orchlab)")
        if progress and not told:
            progress(f"waiting for another orchlab that is changing {name!r}")
            told = True
        time.sleep(0.05)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)
