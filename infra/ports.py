"""Choose a port for a server that a test starts."""

from __future__ import annotations

import os
import socket
from itertools import count

FIRST, LAST = 20_000, 32_000
"""Below the kernel's range of automatic ports, because the kernel may hand out one of those before
a server has bound it.
"""
_tried = count(os.getpid() * 37)


def free_port() -> int:
    """Return a port of 127.0.0.1 on which no process listens at this moment."""
    while True:
        port = FIRST + next(_tried) % (LAST - FIRST)
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
