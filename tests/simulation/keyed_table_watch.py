"""Read the table of a keyed topic as a foreign reader does, version by version (design V5).

whole       of each partition a version names exactly the files of one version of the partition, which is the JSON
            object that plain readers take; never those of an earlier one than the version before
there       as `table_watch` says
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

from ledgermq_ledger import keys
from ledgermq_ledger.keys import KeyedName, PartitionId
from tests.simulation.table_watch import Generation, Named, Shown, TableWatch


class KeyedTableWatch(TableWatch):
    @property
    def is_over(self) -> bool:
        """Its topic is removed: the folder has its id, so no other topic gets it."""
        return self.is_removed(self.newest.generation[0])

    def on_keyed(self, changed: KeyedName) -> None:
        """No file that a held version names is gone."""
        if not changed.is_file or not self.versions:
            return
        store, lowest = self._world.store, self.newest.number
        while lowest > 0 and self._is_held(lowest - 1):
            lowest -= 1
        for shown in self.versions[lowest:]:
            gone = [path for path in shown.files if not store.has(self.folder + path)]
            if gone and self.is_promised(shown):
                text = f"{gone[0]}: version {shown.number} of {self.newest.number} names it"
                self._report("file deleted while named", text)
                return

    def _named(self, add: dict[str, Any]) -> Named:
        name = keys.parse_keyed(self.folder + unquote(add["path"]))
        stats = json.loads(add["stats"])
        if name is None or stats["minValues"]["partition"] != name.place.partition:
            self._report("statistics differ", add["path"])
            return Named(0, 0, 0)
        return Named(name.place.partition, 0, 0)

    def _judge_kinds(self, adds: dict[str, Named], removes: set[str], *, begins: bool, where: str) -> None:
        """A version replaces files by others, in one step."""

    def _judge(self, before: Shown, shown: Shown, may_show_less: bool, where: str) -> None:
        self._judge_progress(before, shown, where)
        if not shown.files and before.files:
            return  # it was dropped
        for number, place in self._shown_versions(shown):
            there = {path for path, file in shown.files.items() if file.partition == place.partition}
            if there != self._files_of(place, number):
                text = f"{where}: partition {place.partition}, version {number}: {sorted(there)}"
                self._report("keyed version torn", text)

    def _shown_versions(self, shown: Shown) -> list[tuple[int, PartitionId]]:
        found = []
        for name, value in shown.txns.items():
            topic_id, partition, what = name.split("/")[-3:]
            if what == "version" and int(topic_id) == shown.generation[0]:
                found.append((value, PartitionId(int(topic_id), int(partition))))
        return found

    def _files_of(self, place: PartitionId, number: int) -> set[str]:
        """As the version itself says, which may be gone by now."""
        if not number:
            return set()
        version = json.loads(self._world.store.first[keys.keyed_version(place, number)])
        return {file["key"].removeprefix(self.folder) for file in version["files"]}

    def _check_removals(self, before: Shown, removed: set[str], where: str, *, is_empty: bool) -> None:
        """What is removed is judged as a whole."""

    def check_complete(self, generation: Generation, partitions: int) -> None:
        if self.newest.generation != generation:
            self._report("table incomplete", f"it is of generation {self.newest.generation}, not {generation}")
            return
        shown = {place.partition: number for number, place in self._shown_versions(self.newest)}
        for partition in range(partitions):
            place = PartitionId(generation[0], partition)
            versions = [keys.number(key) for key in self._world.store.keys_now(keys.keyed_versions(place))]
            if shown.get(partition, 0) != max(versions, default=0):
                self._report("table incomplete", f"partition {partition}: {shown.get(partition)} of {versions}")
            if len(versions) > 1:
                self._report("held for ever", f"partition {partition}: versions {versions}")
