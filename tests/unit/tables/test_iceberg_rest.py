"""A REST catalog that does not answer, or answers what it should not: the calls end, with an error that says so."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ledgermq.errors import Unavailable
from ledgermq_ledger.iceberg import catalog
from ledgermq_ledger.iceberg.catalog import Place


@contextmanager
def a_server(answer: bytes) -> Iterator[str]:
    """Answer each connection with these bytes; without any it is left open. Yield the URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                taken.append(connection)
                if answer:
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for connection in taken:
                connection.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 500 no\r\nContent-Length: 0\r\n\r\n", b"no HTTP at all\r\n\r\n"])
def test_a_call_ends(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "ANSWER_S", 0.5)
    with a_server(answer) as url:
        monkeypatch.setenv("PYICEBERG_CATALOG__FAR__URI", url)
        with pytest.raises(Unavailable, match=r"table events\.t of catalog far cannot be reached"):
            Place("far", "events", "t", "s3://bucket/root").load()
