"""A port for a server that a test starts."""

from __future__ import annotations

import os
import socket
from itertools import count

FIRST, LAST = 20_000, 32_000
"""Below the ports that the kernel gives to whoever asks for any: those are handed out again before
a server has bound them.
"""
_tried = count(os.getpid() * 37)


def free_port() -> int:
    """One that nobody listens on at this moment, on 127.0.0.1."""
    while True:
        port = FIRST + next(_tried) % (LAST - FIRST)
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
