"""Administration of the tables of topics (Delta, Iceberg): list, describe, rebuild, drop. The owner of partition 0
keeps a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from ledgermq.client.admin.brokers.reports import Brokers
from ledgermq.client.admin.topics import Admin
from ledgermq.client.connection.routing import AtOwners
from ledgermq.client.context import ClientContext
from ledgermq.client.messages.descriptions import TopicPartition, check_topic_text
from ledgermq.client.tables.undecoded import UndecodedValues, find_undecoded
from ledgermq.errors import InvalidRequest, LedgerMQError, NotOwner
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.api import BrokerApi

LISTED_MAX = 100


@dataclass(frozen=True, slots=True)
class TablePartition:
    """A partition of a topic's table. `start`: the log start that the table says. `end`: the offset after the last one
    that it has. `files`, `rows`, `size_bytes`: of the files that its newest version names; one of them may begin below
    `start`. `parquet_end`: the offset after the last one in Parquet files; None while the partition moves between two
    bundles. `stopped`: why the table stands still here; empty if it does not.
    """

    partition: int
    start: int
    end: int
    files: int
    rows: int
    size_bytes: int
    parquet_end: int | None
    stopped: str

    @property
    def missing(self) -> int:
        """Number of offsets in Parquet files that the table does not have yet."""
        return 0 if self.parquet_end is None else max(0, self.parquet_end - self.end)


@dataclass(frozen=True, slots=True)
class TableDescription:
    """The table of a topic. `folder`: its URL, for readers. `generation`: rises each time the table is set or rebuilt.
    `is_current`: the newest version is of this generation; otherwise one of it replaces all files soon.

    `version`: the newest one, `oldest_held`: the lowest one whose files stay, None: there is none yet. `changed`: when
    the newest version was stored, by the store's clock. `behind_s`: for how long the table has lacked Parquet files, in
    seconds, and `waits_for` says why; 0: it lacks none. `held_bytes`: of files below log starts that stay because a
    version names them, measured once a minute. `foreign_objects`: how many in its folder LedgerMQ did not put, measured
    once an hour; `foreign`: keys of the first of them. Both are 0 until the owner of partition 0 has measured.
    """

    topic: str
    format: str
    folder: str
    generation: int
    is_current: bool
    version: int | None
    oldest_held: int | None
    changed: datetime | None
    behind_s: float
    waits_for: str
    held_bytes: int
    foreign_objects: int
    foreign: Sequence[str]
    partitions: Sequence[TablePartition]

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.partitions)


@dataclass(frozen=True, slots=True)
class TableSummary:
    """The table of a topic, summed up over its partitions, with fields as in `TableDescription`. `missing`: offsets in
    Parquet files that the table does not have yet. `stopped`: partitions in which it stands still. `trouble`: why in
    the first of these, or why the table cannot be described, and there are no numbers then; "": nothing is wrong.
    """

    topic: str
    format: str
    folder: str
    is_current: bool
    version: int | None
    changed: datetime | None
    files: int
    rows: int
    size_bytes: int
    missing: int
    behind_s: float
    waits_for: str
    held_bytes: int
    foreign_objects: int
    stopped: int
    trouble: str


class TableAdmin:
    """The tables of topics, as `client.tables`. Every call ends within the client's `timeout_s`."""

    def __init__(self, context: ClientContext, admin: Admin) -> None:
        self._context = context
        self._admin = admin
        self._brokers = Brokers(context)

    async def list(self, *, after: str = "", limit: int = 100) -> Sequence[TableSummary]:
        """Return a page of the tables of all topics, by topic: the first `limit` (100 at most) behind that of `after`.

        That is one call of each broker; each reads the log of each of its tables in the page. A table that changes its
        owner meanwhile may be missing. Raises Unauthorized (it needs the right `cluster`), InvalidRequest (a broker of
        an earlier release runs, which it names), and Unavailable while a broker does not answer.
        """
        if not 0 < limit <= LISTED_MAX:
            raise InvalidRequest(f"limit must be 1 to {LISTED_MAX}, not {limit}")
        request = pb.DescribeLakeRequest(after=after, limit=limit)
        deadline = self._context.connections.deadline()
        answers = await self._brokers.each(deadline, lambda at: at.describe_lake(request))
        found = {table.topic: table for answer in answers for table in answer.tables}
        return [_summary(found[topic]) for topic in sorted(found)[:limit]]

    async def describe(self, topic: str) -> TableDescription:
        """Return what the newest version of a topic's table says, and how far it is behind.

        Raises UnknownTopic, InvalidRequest (the topic has no table, or a broker of an earlier release answers),
        DataDamaged (the table's log cannot be read; `object_key` says where), FormatNotSupported, Unauthorized, and
        Unavailable while no broker owns partition 0.
        """
        request = pb.DescribeTableRequest(topic=check_topic_text(topic))

        async def ask(
            at: BrokerApi, partitions: Sequence[TopicPartition]
        ) -> Sequence[pb.DescribeTableResponse | LedgerMQError]:
            try:
                return [await at.describe_table(request)]
            except NotOwner as error:
                return [error]

        connections, first = self._context.connections, TopicPartition(topic, 0)
        found = await AtOwners(connections, self._context.routing, ask).find([first], connections.deadline())
        return _description(topic, found[first])

    async def errors(self, topic: str, *, after: str = "", limit: int = 100) -> UndecodedValues:
        """Return a page of the records of a topic whose values compaction could not decode (column `value_error`): at
        most `limit` (1 to 1000), behind a page whose `next` was `after`. The topic need not have a table.

        Only what is compacted is looked at, and nothing below the log start. A page looks into some hundred row groups
        at most, so that it may have fewer records than `limit` although others come. Raises UnknownTopic (also if
        `after` is of a topic that was deleted since), InvalidRequest (the topic's values have no schemas, `after` is no
        `next`, or a broker of an earlier release answers), Unauthorized (it needs the right to consume the topic),
        DataDamaged, FormatNotSupported, and Unavailable while a partition is between two bundles: repeat it then.
        """
        return await find_undecoded(self._context.connections, topic, after, limit)

    async def rebuild(self, topic: str) -> int:
        """Begin a new generation of a topic's table, and return it: the owner of partition 0 replaces all that the
        table shows by the Parquet files above the log start, some seconds after this returns. Files that versions of
        the former generation name stay as long as before. Streams over the table begin again.

        A repeated call begins another generation, and does no harm. Raises UnknownTopic, InvalidRequest (the topic has
        no table, or the controller is a broker of an earlier release), Unauthorized (it needs the right to alter the
        topic), and Unavailable if the change is not in force in a bundle: repeat it then.
        """
        found = await self._admin.alter_topic(topic, 0, {}, (), rebuild_table=True)
        return int(found.settings["table.generation"])

    async def drop(self, topic: str) -> None:
        """End a topic's table: unset `table.format` and `table.delta.place`, and put a last version without files, so
        that readers find nothing instead of names of files that are gone. The topic stays, and so do the table's log,
        and an Iceberg table in its catalog. Files that its versions name are kept no longer.

        A repeated call is harmless, and ends what one has begun that failed. Raises UnknownTopic, InvalidRequest (a
        broker of an earlier release answers), Unauthorized (it needs the rights to describe and to alter the topic),
        DataDamaged (the table's log cannot be read), and Unavailable: repeat it then.
        """
        request = pb.DropTableRequest(topic=check_topic_text(topic))
        if "table.format" in (await self._admin.describe_topic(topic)).settings:
            await self._admin.alter_topic(topic, 0, {}, ("table.format", "table.delta.place"))
        connections = self._context.connections
        await connections.ask(lambda at: at.drop_table(request), connections.deadline())


def _description(topic: str, found: pb.DescribeTableResponse) -> TableDescription:
    has_version = found.HasField("version")
    return TableDescription(
        topic,
        found.format,
        found.folder,
        found.generation,
        found.is_current,
        found.version if has_version else None,
        found.oldest_held if has_version else None,
        datetime.fromtimestamp(found.version_ms / 1000, UTC) if found.version_ms else None,
        found.behind_ms / 1000,
        found.waits_for,
        found.held_bytes,
        found.foreign_objects,
        tuple(found.foreign),
        tuple(_partition(number, each) for number, each in enumerate(found.partitions)),
    )


def _summary(found: pb.LakeTable) -> TableSummary:
    return TableSummary(
        found.topic,
        found.format,
        found.folder,
        found.is_current,
        found.version if found.HasField("version") else None,
        datetime.fromtimestamp(found.version_ms / 1000, UTC) if found.version_ms else None,
        found.files,
        found.rows,
        found.size_bytes,
        found.missing,
        found.behind_ms / 1000,
        found.waits_for,
        found.held_bytes,
        found.foreign_objects,
        found.stopped,
        found.trouble,
    )


def _partition(number: int, found: pb.DescribedTablePartition) -> TablePartition:
    return TablePartition(
        number,
        found.start,
        found.end,
        found.files,
        found.rows,
        found.size_bytes,
        found.parquet_end if found.HasField("parquet_end") else None,
        found.stopped,
    )
