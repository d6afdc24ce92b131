"""Calls that wait for the asynchronous ones, made by infra/sync_client.py (`make pages`): do not edit."""

from __future__ import annotations

from collections.abc import Sequence

from ledgermq.client.tables.admin import TableAdmin as AsyncTableAdmin
from ledgermq.client.tables.admin import TableDescription, TableSummary
from ledgermq.client.tables.undecoded import UndecodedValues
from ledgermq.sync.background import Background


class TableAdmin:
    """The tables of topics, as `client.tables`. Every call ends within the client's `timeout_s`."""

    def __init__(self, background: Background, inner: AsyncTableAdmin) -> None:
        self._background = background
        self._inner = inner

    def list(self, *, after: str = "", limit: int = 100) -> Sequence[TableSummary]:
        """Return a page of the tables of all topics, by topic: the first `limit` (100 at most) behind that of `after`.

        That is one call of each broker; each reads the log of each of its tables in the page. A table that changes its
        owner meanwhile may be missing. Raises Unauthorized (it needs the right `cluster`), InvalidRequest (a broker of
        an earlier release runs, which it names), and Unavailable while a broker does not answer.
        """
        return self._background.run(self._inner.list(after=after, limit=limit))

    def describe(self, topic: str) -> TableDescription:
        """Return what the newest version of a topic's table says, and how far it is behind.

        Raises UnknownTopic, InvalidRequest (the topic has no table, or a broker of an earlier release answers),
        DataDamaged (the table's log cannot be read; `object_key` says where), FormatNotSupported, Unauthorized, and
        Unavailable while no broker owns partition 0.
        """
        return self._background.run(self._inner.describe(topic))

    def errors(self, topic: str, *, after: str = "", limit: int = 100) -> UndecodedValues:
        """Return a page of the records of a topic whose values compaction could not decode (column `value_error`): at
        most `limit` (1 to 1000), behind a page whose `next` was `after`. The topic need not have a table.

        Only what is compacted is looked at, and nothing below the log start. A page looks into some hundred row groups
        at most, so that it may have fewer records than `limit` although others come. Raises UnknownTopic (also if
        `after` is of a topic that was deleted since), InvalidRequest (the topic's values have no schemas, `after` is no
        `next`, or a broker of an earlier release answers), Unauthorized (it needs the right to consume the topic),
        DataDamaged, FormatNotSupported, and Unavailable while a partition is between two bundles: repeat it then.
        """
        return self._background.run(self._inner.errors(topic, after=after, limit=limit))

    def rebuild(self, topic: str) -> int:
        """Begin a new generation of a topic's table, and return it: the owner of partition 0 replaces all that the
        table shows by the Parquet files above the log start, some seconds after this returns. Files that versions of
        the former generation name stay as long as before. Streams over the table begin again.

        A repeated call begins another generation, and does no harm. Raises UnknownTopic, InvalidRequest (the topic has
        no table, or the controller is a broker of an earlier release), Unauthorized (it needs the right to alter the
        topic), and Unavailable if the change is not in force in a bundle: repeat it then.
        """
        return self._background.run(self._inner.rebuild(topic))

    def drop(self, topic: str) -> None:
        """End a topic's table: unset `table.format` and `table.delta.place`, and put a last version without files, so
        that readers find nothing instead of names of files that are gone. The topic stays, and so do the table's log,
        and an Iceberg table in its catalog. Files that its versions name are kept no longer.

        A repeated call is harmless, and ends what one has begun that failed. Raises UnknownTopic, InvalidRequest (a
        broker of an earlier release answers), Unauthorized (it needs the rights to describe and to alter the topic),
        DataDamaged (the table's log cannot be read), and Unavailable: repeat it then.
        """
        self._background.run(self._inner.drop(topic))
