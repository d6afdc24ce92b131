"""A port for a server that a test starts."""

from __future__ import annotations

import socket


def free_port() -> int:
    """One that nobody listens on at this moment, on 127.0.0.1."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
