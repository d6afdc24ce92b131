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
        if is_free(port):
            return port


def is_free(port: int) -> bool:
    """Return whether no process listens on this port of 127.0.0.1 at this moment."""
    with socket.socket() as listening:
        try:
            listening.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
