"""Check the objects of Spark's sinks below `sinks/`: staged rows, decisions and done marks can be
read, and the objects that a decision names exist until its epoch is finished.

A damaged object of a finished epoch is a note: its records are in their topics.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from ledgermq.errors import CorruptFrame, MessageTooLarge, StoreError
from ledgermq.protocol.batches.records import decode_batch
from ledgermq_ledger import keys
from ledgermq_ledger.blocking import RunBlocking
from ledgermq_ledger.fsck.problem import Problems
from ledgermq_ledger.keys import SinkName
from ledgermq_ledger.object_store.contract import ObjectMissing, ObjectStore
from ledgermq_ledger.sinks import Decision, check_staged, decode_decision, decode_done, staged_index

Epoch = tuple[str, int]
"""(write, epoch)"""


@dataclass(slots=True)
class _Listed:
    staged: list[str] = field(default_factory=list)
    decided: list[str] = field(default_factory=list)
    done: dict[Epoch, str] = field(default_factory=dict)


async def check_sinks(store: ObjectStore, problems: Problems, run_blocking: RunBlocking, *, quick: bool) -> None:
    listed = _Listed()
    names: dict[str, SinkName] = {}
    async for info in store.list(keys.SINKS):
        if (name := keys.parse_sink(info.key)) is None:
            continue
        names[info.key] = name
        if name.kind == "done":
            listed.done[name.write, name.epoch] = info.key
        else:
            (listed.staged if name.kind == "staged" else listed.decided).append(info.key)
    await _SinksCheck(store, problems, run_blocking, names, listed.done, quick).run(listed)


class _SinksCheck:
    def __init__(
        self,
        store: ObjectStore,
        problems: Problems,
        run_blocking: RunBlocking,
        names: dict[str, SinkName],
        done: dict[Epoch, str],
        quick: bool,
    ) -> None:
        self._store = store
        self._problems = problems
        self._run_blocking = run_blocking
        self._names = names
        self._done = done
        self._quick = quick
        self._records: dict[str, int] = {}
        """Records of staged objects that can be read."""
        self._damaged: set[str] = set()

    async def run(self, listed: _Listed) -> None:
        for key in listed.staged:
            await self._check_staged(key)
        for key in listed.decided:
            await self._check_decision(key)
        for key in listed.done.values():
            data = await self._read(key)
            if data is not None:
                with self._problems.collecting(key):
                    decode_done(data, key)

    async def _read(self, key: str) -> bytes | None:
        """Read an object; None if a driver has deleted it since the LIST."""
        try:
            return await self._store.get(key)
        except ObjectMissing:
            return None

    async def _check_staged(self, key: str) -> None:
        data = await self._read(key)
        if data is None:
            return
        try:
            index = staged_index(data, key)
            check_staged(data, key)
        except StoreError as error:
            self._report(key, error.code, error.message.removeprefix(f"{key}, staged rows: "))
            return
        if not key.endswith(f"-{index.put_id.hex()}"):
            self._report(key, "WRONG_NAME", f"its index says put id {index.put_id.hex()}")
        self._records[key] = sum(entry.record_count for entry in index.batches)
        if not self._quick:
            batches = [(data[e.position : e.position + e.length], e.record_count) for e in index.batches]
            if (wrong := await self._run_blocking(partial(_find_wrong_batch, batches))) is not None:
                self._report(key, "DATA_DAMAGED", wrong)

    def _report(self, key: str, code: str, text: str) -> None:
        """Report a problem of an object of staged rows."""
        self._damaged.add(key)
        name = self._names[key]
        if (name.write, name.epoch) in self._done:
            self._problems.note(key, code, f"{text}; its epoch is finished, so its records are in their topics")
        else:
            self._problems.damage(key, code, text)

    async def _check_decision(self, key: str) -> None:
        data = await self._read(key)
        if data is None:
            return
        name = self._names[key]
        with self._problems.collecting(key):
            decision = decode_decision(data, key)
            prefix = keys.sink_staged_of(name.write, name.epoch)
            strange = [each for each in decision.objects if not each.startswith(prefix)]
            if strange:
                self._problems.damage(key, "WRONG_LIST", f"it names {strange[0]}, which is staged for another epoch")
            elif (name.write, name.epoch) not in self._done and not decision.transactional_id:
                await self._check_objects(key, name, decision)

    async def _check_objects(self, key: str, name: SinkName, decision: Decision) -> None:
        """Check the objects of an epoch that is decided and not finished: its driver continues with
        what is staged.
        """
        missing = [each for each in decision.objects if each not in self._records and each not in self._damaged]
        for each in missing:
            await self._check_staged_since(each, name)
        if any(each not in self._records and each not in self._damaged for each in decision.objects):
            if await self._is_settled(key, name):
                return
            for each in decision.objects:
                if each not in self._records and each not in self._damaged:
                    text = f"it is missing, but {key} names it and its epoch is not finished: its records are lost"
                    self._problems.damage(each, "OBJECT_MISSING", text)
        elif not self._damaged.intersection(decision.objects):
            records = sum(self._records[each] for each in decision.objects)
            if records != decision.records:
                self._problems.damage(
                    key, "WRONG_ROWS", f"it says {decision.records} records, but {records} are staged"
                )

    async def _check_staged_since(self, key: str, name: SinkName) -> None:
        """Check an object that may have been staged after the LIST had passed its name."""
        self._names[key] = name
        await self._check_staged(key)

    async def _is_settled(self, key: str, name: SinkName) -> bool:
        """Return True if the epoch has been finished since, or the whole write removed. Checked in
        this order, because a driver deletes the decision before the done mark.
        """
        for each, is_settled_if_there in ((keys.sink_done_epoch(name.write, name.epoch), True), (key, False)):
            if (await self._read(each) is not None) is is_settled_if_there:
                return True
        return False


def _find_wrong_batch(batches: Iterable[tuple[bytes, int]]) -> str | None:
    """Decode all batches and return what is wrong with one. Blocking."""
    for data, record_count in batches:
        try:
            rows = decode_batch(data).num_rows
        except (CorruptFrame, MessageTooLarge) as error:
            return f"one of its batches cannot be read: {error.message}"
        if rows != record_count:
            return f"one of its batches has {rows} rows, but its index says {record_count}"
    return None
