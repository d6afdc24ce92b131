"""Model of merges: small Parquet files of a partition get a merged file beside the log.

A merge reads the list of small files in the newest checkpoint of the bundle in charge, puts one merged
file, then a list of merged files, and then a checkpoint that names the list, if no other merge came
between. Small files stay until retention takes them from the front. A merged file stands for all small
ones of its range, and goes when the first of them has gone. Merged files of a topic that is gone, and
those that no merge can list any longer, are garbage. A cut names small files alone.
"""

from __future__ import annotations

from tests.models.merges.bundles import expire, make_files, move, recreate
from tests.models.merges.merging import collect, merge
from tests.models.merges.readers import cut, read
from tests.models.merges.state import World
from tests.models.walk import Model, Process, Walk

STEPS = 5000
STEPS_AT_REST = 2500

RULES = {
    "listed-whatever-came-between": "a merge is listed only if no other merge of the partition was since it was begun",
    "collected-while-on-its-way": "what is put for the next merge stays, because a merge may list it yet",
    "collected-by-age": "age alone says nothing: a merge that slept longer lists what is gone",
    "cleaned-up-after-an-unknown-outcome": "what a merge has put stays when the outcome of its checkpoint is unknown",
    "merged-outlives-its-files": "a merged file goes with the first of the small files that it stands for",
    "merges-forget-what-is-behind": "a new list has the files behind the front that are not deleted yet",
    "merged-beside-what-is-behind": "what a merged file has that is there is not merged again",
    "noted-for-another-list": "what is noted as deleted of one list says nothing of the next",
    "merged-into-a-frozen-list": "the list of a partition that has left does not change",
    "merged-by-the-bundle-it-left": "only the bundle in charge lists a merged file",
    "numbers-begin-again-at-a-move": "the number of the newest merge goes over with the list",
    "collected-by-the-bundle-it-left": "garbage is judged by the list of the bundle in charge",
    "merged-by-name": "a topic that is created again is another one: its id is in each name",
    "merged-over-a-gap": "a merge takes neighbours",
    "a-missing-merged-file-is-damage": "where a merged file is gone, the small ones are read",
    "cuts-read-merged-files": "a reader of a cut takes small files alone",
    "files-of-a-cut-go-with-their-merge": "small files go by the rules of retention alone, merged or not",
}


def delete_merged_small(world: World) -> Process:
    """Without its rule: small files of the middle go once they are merged."""
    while True:
        yield world.walk.random.randrange(100)
        found = yield from world.in_charge()
        if found is None or not world.breaks("files-of-a-cut-go-with-their-merge"):
            continue
        part = found[1].part
        for file in world.lists.get(part.merged, ()) if part.merged is not None else ():
            for small in part.small:
                if file.first <= small.first and small.end <= file.end:
                    world.small.discard(small)


def run(walk: Walk) -> None:
    world = World(walk)
    roles = (make_files, expire, merge, merge, collect, move, recreate, read, read, cut, delete_merged_small)
    due = [(0, number, role(world)) for number, role in enumerate(roles)]
    for step in range(STEPS + STEPS_AT_REST):
        world.is_calm = step >= STEPS
        at = min(range(len(due)), key=lambda at: (due[at][0], due[at][1]))
        _, number, process = due[at]
        world.now = max(world.now, due[at][0])
        for sent in [sent for sent in world.late if sent[0] <= world.now]:
            world.late.remove(sent)
            sent[1]()
        try:
            pause = next(process) or 0
        except StopIteration:
            due.pop(at)
            continue
        due[at] = (world.now + 1 + pause + walk.random.randrange(3), number, process)
    world.check_end()


MERGES = Model(
    "merges",
    run,
    RULES,
    (
        "merges",
        "moves",
        "topics created again",
        "small files deleted",
        "collected",
        "late puts",
        "reads of merged files",
        "reads of small files",
        "reads of cuts",
    ),
)
