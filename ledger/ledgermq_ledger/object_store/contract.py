"""Define what LedgerMQ needs of an object store: one small async contract, the same for memory,
files, S3 and HDFS.

A *key* is a relative path such as ``ledgers/0001/segments/00000000000000000007``: parts of
``[A-Za-z0-9._=-]`` joined by "/". An object of which a part of the key starts with "." is hidden:
it can be put, read and deleted, but `list` never shows it. Backends answer, they do not retry:
hidden retries would turn "exists" into a lie (a conditional put whose first try landed sees
itself). `ledgermq_ledger.object_store.settle` turns these answers into won / lost, `resilient` adds
back-off.

Errors that a backend raises, and no others:

    AlreadyExists       the key exists: another call created it, or this very one
    ObjectMissing       get, get_range, get_suffix, head: there is no such object
    FenceClosed         a fenced put came after close_fence
    StoreUncertain      time-out, 409, 5xx, broken connection: the operation may or may not have happened
    StoreThrottled      503 SlowDown, 429: a StoreUncertain with the store's request to wait
    ledgermq.errors.StoreFull
                        no room, or a quota is used up: certainly nothing was put
    ledgermq.errors.StoreUnusable / Unauthorized
                        final: no bucket, read-only; wrong credentials: certainly nothing was put
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from ledgermq import buffers
from ledgermq.errors import InvalidRequest, LedgerMQError, RetriableError

Buffer = buffers.Buffer
P = TypeVar("P")

FENCES = "parquet/_tmp/"
"""A folder for the stores themselves: an object put under a fence stays below it until it is whole.
"""
PASSING = ("parquet/", "keyed/", "sinks/", "hidden/", "merged/")
"""Folders of topics and queries lie below these.

Stores that have real folders remove the empty ones there.
"""


class AlreadyExists(LedgerMQError):
    code = "OBJECT_EXISTS"


class ObjectMissing(LedgerMQError):
    code = "OBJECT_MISSING"


class FenceClosed(LedgerMQError):
    code = "FENCE_CLOSED"


class StoreUncertain(RetriableError):
    code = "STORE_UNCERTAIN"


class StoreThrottled(StoreUncertain):
    code = "STORE_THROTTLED"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """`key` relative to the root; `size` in bytes; `etag` changes whenever the content does;
    `modified_ms` by the store's clock.
    """

    key: str
    size: int
    etag: str
    modified_ms: int


class FencedPuts(ABC):
    """The right to create a few named objects while their fence is open (and, on S3, until their
    presigned URLs expire).
    """

    @abstractmethod
    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        """Create `key` whole. Raises AlreadyExists, FenceClosed, StoreUncertain, StoreThrottled."""


class OpenedPuts(FencedPuts, Generic[P]):
    """Puts of a store under one fence. `places`: where the store puts each of the keys for which it was opened.
    `put(key, place, buffers)` raises as `FencedPuts.put_if_absent`.
    """

    def __init__(
        self, fence: str, places: Mapping[str, P], put: Callable[[str, P, Sequence[Buffer]], Awaitable[None]]
    ) -> None:
        self._fence = fence
        self._places = places
        self._put = put

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        if key not in self._places:
            raise InvalidRequest(f"fence {self._fence} was not opened for {key}")
        await self._put(key, self._places[key], buffers)


class ObjectStore(ABC):
    """An object store: root-relative keys in, bytes out.

    Every method is safe to cancel; a cancelled put may still land.
    """

    url: str
    """The root URL with which `open_store` opens this store again, in any process; no secrets in
    it.
    """

    fences_close_at_once: bool = True
    """False if only their age refuses late puts (S3: presigned URLs that expire)."""

    @abstractmethod
    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        """Create `key` with the joined buffers, durable on return; atomic: readers see all of it or
        nothing.

        Raises AlreadyExists, StoreFull, StoreUncertain, StoreThrottled.
        """

    async def confirm(self, key: str, buffers: Sequence[Buffer]) -> bool:
        """Finish a `put_if_absent` whose outcome was unknown, and whose buffers were found at
        `key`. False: it counts as lost.

        A store that puts more than the object itself completes that here. Raises StoreUncertain,
        StoreThrottled.
        """
        return True

    async def put_data(self, key: str, buffers: Sequence[Buffer]) -> None:
        """Put like `put_if_absent`, for large objects: raises StoreFull if only the reserve is
        left.

        Everything else may use the reserve: claims, checkpoints, heartbeats and deletions of topics
        have to work on a full store.
        """
        await self.put_if_absent(key, buffers)

    async def make_durable(self, keys: Sequence[str]) -> None:
        """Make sure that existing objects survive a power cut, before anything is built on those
        that were put under a fence.

        Reading does so for all others, and for these while their fence is open. Closing the fence
        may remove the evidence that a put was interrupted. Raises ObjectMissing, StoreUncertain.
        """
        return

    async def keep_reserve(self, size_bytes: int) -> bool:
        """Set this much room aside for all puts but those of data, or restore it; 0: set nothing
        aside. Idempotent.

        Return False if there is no room for it now, so puts of data are refused. Stores that cannot
        set room aside return True.
        """
        return True

    @abstractmethod
    async def put(self, key: str, data: Buffer) -> None:
        """Create or replace an object, in one step for its readers.

        For liveness files, and for bytes on which all writers agree (`ledgermq_ledger.root.copies`, the version
        of `cluster.json`): no object that safety depends on is ever overwritten by others.
        """

    @abstractmethod
    async def get(self, key: str) -> bytes:
        """Return the whole object. Raises ObjectMissing."""

    @abstractmethod
    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Return exactly `length` bytes from `start`; fewer only where the object ends.

        Raises ObjectMissing.
        """

    @abstractmethod
    async def get_suffix(self, key: str, length: int) -> bytes:
        """Return the last `length` bytes, or all of a shorter object. Raises ObjectMissing."""

    @abstractmethod
    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """Yield objects whose key starts with `prefix` and is greater than `start_after`, in
        ascending order of key (as bytes).

        Strongly consistent with finished puts and deletes. Temporary files of the store itself are
        never shown.
        """

    @abstractmethod
    async def delete(self, keys: Sequence[str]) -> None:
        """Delete all objects; they are gone on return. A key that does not exist is no error."""

    @abstractmethod
    async def head(self, key: str) -> ObjectInfo:
        """Return the object's properties. Raises ObjectMissing."""

    @abstractmethod
    async def store_time_ms(self) -> int:
        """Return a new reading of the store's own clock, to which `modified_ms` refers."""

    @abstractmethod
    async def open_fence(self, fence: str) -> None:
        """Make fence `fence` (a name of one path part), durably, before any process puts under it.

        Idempotent.
        """

    @abstractmethod
    async def fenced_puts(self, fence: str, keys: Sequence[str], url_life_ms: int) -> FencedPuts:
        """Return the permission to create `keys` under an open fence. Take it **before** the read
        of the newest checkpoint that justifies the puts.

        File, HDFS, memory: a put fails once `close_fence` has returned. S3: the URLs are presigned
        here, and the store refuses them after `url_life_ms`. Raises FenceClosed if that is already
        known, StoreUncertain if the clocks differ too much.
        """

    @abstractmethod
    async def close_fence(self, fence: str) -> None:
        """Close a fence: after this returns no put under `fence` can succeed (S3: no earlier than
        `parquet_min_age_ms`). Idempotent.
        """

    @abstractmethod
    async def list_fences(self) -> Sequence[str]:
        """Return the fences that still hold something in the store (S3: always none)."""

    @abstractmethod
    async def share(self, key: str, life_ms: int) -> str | None:
        """Return a URL (file:, http: or https:) by which another process may read `key` for at
        least this time; None if there is none.

        The object need not exist.
        """

    async def close(self) -> None:
        """Close connections and threads."""
        return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
