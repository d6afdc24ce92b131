"""`CutStore`: a store as it stood at a cut. Reads only.

    checkpoints of bundle b     its base alone
    segments of bundle b        up to its place
    plans                       up to the one that the base has finished
    versions of keyed topics    the placed one alone
    Parquet files of logs       where they are: below `parquet/`, or handed over to `held/`
    merged files                none

Whatever reads a root without a broker reads the cut through it, by the same code: the newest checkpoint is the base,
and the ledger ends at the place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import NoReturn, Self, TypeVar

from ledgermq.errors import DataDamaged, UnknownCut
from ledgermq_ledger import keys
from ledgermq_ledger.cuts import names
from ledgermq_ledger.cuts.cut import read_cut, versions_of
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.chains.checkpoint import decode_checkpoint
from ledgermq_ledger.object_store.contract import Buffer, ObjectInfo, ObjectMissing, ObjectStore
from ledgermq_ledger.object_store.wrappers.wrapper import StoreWrapper

T = TypeVar("T")


class CutStore(StoreWrapper):
    """`bases`: the base of each bundle."""

    def __init__(self, inner: ObjectStore, cut: fmt.Cut, bases: Mapping[int, fmt.Checkpoint]) -> None:
        super().__init__(inner)
        self.cut = cut
        self._bases = bases
        self._versions = versions_of(cut)

    @classmethod
    async def open(cls, inner: ObjectStore, cut_id: int) -> Self:
        """Open a cut. Raises UnknownCut, DataDamaged, FormatNotSupported, the store's errors."""
        cut = await read_cut(inner, cut_id)
        if cut is None:
            raise UnknownCut(f"{names.cut(cut_id)}: there is no such object, so the cut was dropped or never taken")
        bases = {}
        for bundle in cut.bundles:
            key = keys.checkpoint(bundle.bundle, bundle.base)
            try:
                bases[bundle.bundle] = decode_checkpoint(await inner.get(key), key)
            except ObjectMissing as error:
                raise DataDamaged(f"{key}: it is missing, but cut {cut.name!r} needs it", object_key=key) from error
        return cls(inner, cut, bases)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        async for info in self.inner.list(prefix, start_after):
            if self._has(info.key):
                yield info

    def _has(self, key: str) -> bool:
        bundle = keys.parse_ledger(key)
        if bundle is not None:
            return self._has_in_ledger(bundle, key)
        if key.startswith(keys.MERGED):  # small files have all records, and stay for the cut
            return False
        version = keys.parse_keyed(key)
        return version is None or version.is_file or version.number == self._versions.get(version.place, 0)

    def _has_in_ledger(self, bundle: int, key: str) -> bool:
        base = self._bases.get(bundle)
        if base is None:
            return False
        number = keys.number(key)
        if keys.is_numbered(key, keys.checkpoints(bundle)):
            return number == base.number
        if keys.is_numbered(key, keys.segments(bundle)):
            return number <= self.cut.bundles[bundle].slot
        return number <= base.finished_plan

    async def get(self, key: str) -> bytes:
        return await self._wherever(key, self.inner.get)

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        return await self._wherever(key, lambda at: self.inner.get_range(at, start, length))

    async def get_suffix(self, key: str, length: int) -> bytes:
        return await self._wherever(key, lambda at: self.inner.get_suffix(at, length))

    async def head(self, key: str) -> ObjectInfo:
        return await self._wherever(key, self.inner.head)

    async def _wherever(self, key: str, read: Callable[[str], Awaitable[T]]) -> T:
        if keys.parse_parquet(key) is None:
            if not self._has(key):
                raise ObjectMissing(f"{key}: it is not in cut {self.cut.name!r}", object_key=key)
            return await read(key)
        for at in (key, names.held(key)):
            try:
                return await read(at)
            except ObjectMissing:
                continue
        return await read(key)  # it was handed over only after the first look

    async def put_if_absent(self, key: str, buffers: Sequence[Buffer]) -> None:
        self._refuse(key)

    async def put_data(self, key: str, buffers: Sequence[Buffer]) -> None:
        self._refuse(key)

    async def put(self, key: str, data: Buffer) -> None:
        self._refuse(key)

    async def delete(self, keys: Sequence[str]) -> None:
        self._refuse(", ".join(keys))

    async def open_fence(self, fence: str) -> None:
        self._refuse(fence)

    def _refuse(self, what: str) -> NoReturn:
        raise AssertionError(f"{what}: cut {self.cut.name!r} is read only")

    def base(self, bundle: int) -> fmt.Checkpoint:
        return self._bases[bundle]
