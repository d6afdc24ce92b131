"""A request and its answer as frozen values, so that handlers do not know the HTTP server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from ledgermq.runtime.ports.turns import Place
from ledgermq_gateway.callers import Caller
from ledgermq_gateway.http.limits import Share
from ledgermq_gateway.http.service import Service

JSON = "application/json"
NDJSON = "application/x-ndjson"
OCTETS = "application/octet-stream"
ARROW = "application/vnd.apache.arrow.stream"
EVENTS = "text/event-stream"
SCHEMA_JSON = "application/vnd.schemaregistry.v1+json"
NOTHING: Mapping[str, str] = MappingProxyType({})


class Call(NamedTuple):
    """One request. `names`: the variable parts of its path. `headers`: by lower-case name, the first of each.
    `content_type`: of the body, without parameters, "" for no body. `caller`: whose credential it carries. `share`:
    its part of the gateway's memory. `place`: its place among the calls under way.
    """

    service: Service
    caller: Caller
    share: Share
    place: Place
    request_id: str
    names: Mapping[str, str] = NOTHING
    query: Mapping[str, str] = NOTHING
    headers: Mapping[str, str] = NOTHING
    content_type: str = ""
    body: bytes = b""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count it among those that stream or wait, and leave its place to calls that do something. Raises Problem."""
        with self.service.streams.one(self.caller.principal):
            self.place.leave()
            yield


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. `headers`: besides the type."""

    body: bytes | memoryview = b""
    content_type: str = JSON
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that goes on. When it ends, or its reader has left, the server closes `chunks`, and then `held`.
    `is_file`: its reader has to see whether its end is the true one. `buffer_bytes`: what its connection may hold; 0:
    as others.
    """

    chunks: AsyncGenerator[bytes, None]
    held: AsyncExitStack
    content_type: str = EVENTS
    headers: tuple[tuple[str, str], ...] = ()
    is_file: bool = False
    buffer_bytes: int = 0


class BrokenAnswer(Exception):
    """A stream cannot go on, and its reader must not take what it has for the whole."""


Handler = Callable[[Call], Awaitable[Answer | Stream]]
