"""Administration of cuts: take, list, show, keep, drop, and the files that one names. The controller takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ledgermq.client.context import ClientContext
from ledgermq.errors import InvalidRequest, UnknownCut
from ledgermq.protocol import ledgermq_pb2 as pb

KEEP_S = 7 * 24 * 3600.0
_STATES = {pb.CUT_PENDING: "pending", pb.CUT_TAKEN: "taken", pb.CUT_ABANDONED: "abandoned", pb.CUT_DROPPED: "dropped"}


@dataclass(frozen=True, slots=True)
class CutBundle:
    """What a cut has of one bundle: read checkpoint `base`, and the segments after it up to `slot`."""

    bundle: int
    base: int
    slot: int


@dataclass(frozen=True, slots=True)
class CutDescription:
    """An instant of the whole cluster. `id`: rises with each attempt to take one. `state`: taken; pending while it is
    being taken; abandoned or dropped until all that it left is removed. `begun`, `taken`: by the later of two clocks;
    None: not taken. `until`: when it is dropped; None: when a program drops it. `reason`: why it was abandoned.
    `bundles`: only where `show` returns it.
    """

    name: str
    id: int
    state: str
    begun: datetime
    taken: datetime | None
    until: datetime | None
    reason: str = ""
    bundles: tuple[CutBundle, ...] = ()


@dataclass(frozen=True, slots=True)
class CutFile:
    """A Parquet file that a cut names, with offsets from `first_offset` to `last_offset`, inclusive; `size` in bytes.
    `url`: where it is; where it is no longer there, it is at `held_url`. Records below `start` of its partition that it
    may hold do not belong to the cut.
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    size: int
    url: str
    held_url: str


@dataclass(frozen=True, slots=True)
class CutPartition:
    """A partition at a cut: offsets from `start` up to, without, `end`. Those from `parquet_end` on are in segments,
    and in no file of `files`.
    """

    partition: int
    start: int
    parquet_end: int
    end: int
    files: Sequence[CutFile]

    @property
    def missing(self) -> int:
        """Number of offsets that no file has."""
        return max(0, self.end - max(self.parquet_end, self.start))


class Cuts:
    """The methods of `client.cuts`. Every call ends within the client's `timeout_s`. They need the right `cluster`."""

    def __init__(self, context: ClientContext) -> None:
        self._connections = context.connections
        self._sources = context.sources

    async def take(self, name: str, *, keep_s: float | None = KEEP_S) -> CutDescription:
        """Take a cut, and return it. Each transaction is in it whole, with its groups' offsets, or not at all;
        everything that was acknowledged before this call is in it, and nothing that is sent after it returns. Writing
        goes on meanwhile; commits of transactions wait for a moment.

        `name`: at most 100 of letters, digits, "." "_" "-". `keep_s`: seconds after which it is dropped, 7 days by
        default; None: it stays until it is dropped. While it is there, what it names is not deleted, so it costs
        storage.

        Raises CutExists, InvalidRequest, Unauthorized, ResourceExhausted (a bundle has 1,000 pins of cuts), and
        Unavailable if a bundle has no owner that takes part, a partition moves, or a broker is of an earlier release;
        the error names it.
        """
        request = pb.TakeCutRequest(name=name, keep_ms=_ms(keep_s), nonce=self._sources.new_id())
        answer = await self._connections.ask(lambda at: at.take_cut(request), self._connections.deadline())
        return _described(answer.cut)

    async def list(self) -> Sequence[CutDescription]:
        """Return all cuts by name, also those that are being taken or removed. Raises Unauthorized, Unavailable."""
        answer = await self._connections.ask(
            lambda at: at.list_cuts(pb.ListCutsRequest()), self._connections.deadline()
        )
        return [_described(each) for each in answer.cuts]

    async def show(self, name: str) -> CutDescription:
        """Return a cut with what it has of each bundle. Raises UnknownCut, Unauthorized, Unavailable."""
        request = pb.ListCutsRequest(name=name)
        if not name:
            raise InvalidRequest("name the cut; `list` returns all")
        answer = await self._connections.ask(lambda at: at.list_cuts(request), self._connections.deadline())
        return _described(answer.cuts[0])

    async def keep(self, name: str, keep_s: float | None) -> CutDescription:
        """Keep a cut for so many seconds from now on; None: until it is dropped. Raises UnknownCut, InvalidRequest,
        Unauthorized, Unavailable.
        """
        request = pb.KeepCutRequest(name=name, keep_ms=_ms(keep_s))
        answer = await self._connections.ask(lambda at: at.keep_cut(request), self._connections.deadline())
        return _described(answer.cut)

    async def drop(self, name: str) -> CutDescription:
        """Drop a cut, and return it as it is then: what only it needs is removed in the background. A cut of this
        name that another program takes meanwhile stays. Raises UnknownCut, Unauthorized, Unavailable.
        """
        named = await self.show(name)
        request = pb.DropCutRequest(name=name, id=named.id)
        try:
            answer = await self._connections.ask(lambda at: at.drop_cut(request), self._connections.deadline())
        except UnknownCut:  # it was there: an earlier try has dropped it, and all of it is removed
            return replace(named, state="dropped")
        return _described(answer.cut)

    async def files(self, name: str, topic: str) -> Sequence[CutPartition]:
        """Return what a cut has of each partition of a topic, with the Parquet files that it names, for programs that
        read Parquet. Raises UnknownCut, UnknownTopic, Unauthorized (it needs the right to describe the topic),
        Unavailable, DataDamaged.
        """
        first = await self._partition(name, topic, 0)
        return [first[0], *[(await self._partition(name, topic, number))[0] for number in range(1, first[1])]]

    async def _partition(self, name: str, topic: str, partition: int) -> tuple[CutPartition, int]:
        files: list[CutFile] = []
        after = ""
        while True:
            request = pb.ListCutFilesRequest(name=name, topic=topic, partition=partition, after=after)
            found = await self._listed(request)
            root = found.root.rstrip("/") + "/"
            for each in found.files:
                places = root + each.key, root + each.held_key
                files.append(CutFile(topic, partition, each.first_offset, each.last_offset, each.size, *places))
                after = each.key
            if not found.more:
                at = CutPartition(partition, found.start, found.parquet_end, found.end, files)
                return at, found.partitions

    async def _listed(self, request: pb.ListCutFilesRequest) -> pb.ListCutFilesResponse:
        return await self._connections.ask(lambda at: at.list_cut_files(request), self._connections.deadline())


def _ms(keep_s: float | None) -> int:
    if keep_s is None:
        return 0
    if not keep_s > 0:
        raise InvalidRequest(f"a cut is kept for more than 0 seconds, not {keep_s}; None keeps it until it is dropped")
    return max(1, round(keep_s * 1000))


def _described(found: pb.CutInfo) -> CutDescription:
    return CutDescription(
        found.name,
        found.id,
        _STATES.get(found.status, "unknown"),
        datetime.fromtimestamp(found.begun_ms / 1000, UTC),
        _time(found.taken_ms),
        _time(found.until_ms),
        found.reason,
        tuple(CutBundle(each.bundle, each.base, each.slot) for each in found.bundles),
    )


def _time(ms: int) -> datetime | None:
    return datetime.fromtimestamp(ms / 1000, UTC) if ms else None
