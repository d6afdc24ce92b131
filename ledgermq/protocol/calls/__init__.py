"""The calls of the service `ledgermq.v1.Broker`, typed: `__init__.pyi`, which `make proto` writes from the .proto.

A unary call takes a request and returns its response; a stream is an async iterator. Produce, stage and fetch
carry frames (`ledgermq.protocol.frames`). The comments of the .proto say what each does.
`ledgermq.protocol.methods` implements them.
"""

from __future__ import annotations

from typing import Protocol


class UnaryApi(Protocol):
    """Calls with one request and one response."""


class StreamApi(Protocol):
    """Calls with a stream of responses. Answers come in the order of the requests; many requests may be in flight."""
