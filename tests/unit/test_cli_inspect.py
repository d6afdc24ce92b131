"""`ledgermq inspect`: shows what a root holds, and names every damaged object instead of stopping
at it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.format import ledgermq_format_pb2 as fmt
from ledgermq_ledger.log.segments.segment import TRAILER
from ledgermq_tools.ledger.inspect import command as inspect
from tests.stores.backends import file_store
from tests.worlds.filled_root import fill_root
from tests.worlds.root_commands import RootCommand
from tests.worlds.roots import Root

run = RootCommand(inspect)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A cluster with one topic: two terms of bundle 1, a checkpoint between them, three segments
    with records.
    """
    asyncio.run(fill_root(tmp_path / "root"))
    return tmp_path / "root"


def damage(path: Path, position: int) -> None:
    """Turn one bit over."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_a_segment(root: Path) -> None:
    code, found = run.json("segment", root, 1, 2)
    assert code == 0
    assert (found["kind"], found["epoch"], found["broker"], found["records"]) == ("DATA", 1, "a", 2)
    assert [(b["topic_id"], b["partition"], b["base_offset"], b["records"], b["state"]) for b in found["batches"]] == [
        (1, 0, 0, 2, "ok")
    ]
    assert found["findings"] == []
    code, text, _ = run("segment", root, 1, 2)
    assert code == 0
    assert "no damage found" in text


def test_a_damaged_batch_is_a_finding(root: Path) -> None:
    key = keys.segment(1, 2)
    (batch_row,) = run.json("segment", root, 1, 2)[1]["batches"]
    damage(root / key, batch_row["position"] + batch_row["bytes"] - 1)
    code, found = run.json("segment", root, 1, 2)
    assert code == 6
    assert found["batches"][0]["state"] == "damaged"
    assert [(f["object_key"], f["code"]) for f in found["findings"]] == [(key, "DATA_DAMAGED")]
    assert "checksum" in found["findings"][0]["problem"]
    code, text, _ = run("segment", root, 1, 2)
    assert code == 6
    assert key in text


def test_a_damaged_index_is_a_finding(root: Path) -> None:
    damage(root / keys.segment(1, 2), -40)
    code, found = run.json("segment", root, 1, 2)
    assert code == 6
    assert [f["object_key"] for f in found["findings"]] == [keys.segment(1, 2)]


def test_a_segment_of_an_unknown_kind_is_void_and_shown(root: Path) -> None:
    """`make fuzz` found that it stopped the report."""
    path = root / keys.segment(1, 5)
    data = path.read_bytes()
    position, length, _, version, zero, magic = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    index = fmt.SegmentIndex.FromString(data[position : position + length])
    index.kind = 100  # type: ignore[assignment]
    body = index.SerializeToString()
    path.unlink()
    path.write_bytes(data[:position] + body + TRAILER.pack(position, len(body), crc32c(body), version, zero, magic))
    assert run.json("segment", root, 1, 5)[1]["kind"] == "100"
    assert [(s["kind"], s["state"]) for s in run.json("ledger", root, 1)[1]["segments"]][-1] == ("100", "void")


def test_a_ledger(root: Path) -> None:
    code, found = run.json("ledger", root, 1)
    assert code == 0
    assert (found["epoch"], found["claimed_by"], found["checkpoint"], found["last_slot"]) == (2, "b", 1, 5)
    assert [(s["slot"], s["kind"], s["state"], s["records"]) for s in found["segments"]] == [
        (1, "CLAIM", "valid", 0),
        (2, "DATA", "valid", 2),
        (3, "CLAIM", "valid", 0),
        (4, "DATA", "valid", 1),
        (5, "DATA", "valid", 1),
    ]


def test_a_void_segment_is_told_from_a_valid_one(root: Path) -> None:
    late = (root / keys.segment(1, 2)).read_bytes()
    asyncio.run(_put_void(root, late))
    code, found = run.json("ledger", root, 1)
    assert code == 0
    assert found["segments"][-1]["slot"] == 6
    assert found["segments"][-1]["state"] == "void"


async def _put_void(folder: Path, former: bytes) -> None:
    """What a paused former owner of epoch 1 would have put into slot 6."""
    from ledgermq_ledger.log.segments.segment import decode_tail, encode_segment

    index = decode_tail(former, 1, 2).index
    entry = index.batches[0]
    index.slot, index.put_id = 6, b"\1" * 16
    data = former[entry.position : entry.position + entry.length]
    async with file_store(folder) as store:
        await store.put_if_absent(keys.segment(1, 6), encode_segment(index, [data]))


def test_only_the_newest_segments_are_listed(root: Path) -> None:
    _, found = run.json("ledger", root, 1, "--newest", 2)
    assert [s["slot"] for s in found["segments"]] == [4, 5]
    assert found["older_segments_not_shown"] == 3


def test_a_ledger_with_a_damaged_index_shows_all_others(root: Path) -> None:
    damage(root / keys.segment(1, 4), -40)
    code, found = run.json("ledger", root, 1)
    assert code == 6
    assert {f["object_key"] for f in found["findings"]} == {keys.segment(1, 4)}
    assert [s["state"] for s in found["segments"]] == ["unknown", "unknown", "unknown", "damaged", "unknown"]


def test_damage_inside_a_batch_is_seen_by_a_full_look_only(root: Path) -> None:
    (batch_row,) = run.json("segment", root, 1, 4)[1]["batches"]
    damage(root / keys.segment(1, 4), batch_row["position"] + batch_row["bytes"] - 1)
    assert run.json("ledger", root, 1)[0] == 0
    assert run.json("ledger", root, 1, "--full")[0] == 6


def test_a_checkpoint(root: Path) -> None:
    code, found = run.json("checkpoint", root, 1)
    assert code == 0
    assert (found["number"], found["slot"], found["trim_slot"]) == (1, 2, 1)
    assert [(p["topic_id"], p["partition"], p["end"]) for p in found["partitions"]] == [(1, 0, 2)]
    assert found["claims"][0]["broker"] == "a"
    assert run.json("checkpoint", root, 1, 1)[1] == found | {"object": keys.checkpoint(1, 1)}


def test_a_damaged_checkpoint_is_a_finding(root: Path) -> None:
    damage(root / keys.checkpoint(1, 1), 3)
    code, found = run.json("checkpoint", root, 1)
    assert code == 6
    assert [f["object_key"] for f in found["findings"]] == [keys.checkpoint(1, 1)]


def test_the_cluster(root: Path) -> None:
    code, found = run.json("cluster", root)
    assert code == 0
    assert [(b["bundle"], b["segments"]) for b in found["bundles"]] == [(0, 3), (1, 5), (2, 0)]
    assert {t["topic"]: (t["topic_id"], t["records"]) for t in found["topics"]} == {
        "__metadata": (0, 2),
        "flights": (1, 4),
    }
    assert found["brokers"][0]["address"] == "127.0.0.1:9650"
    assert found["findings"] == []
    code, text, _ = run("cluster", root)
    assert code == 0
    assert "flights" in text


@pytest.mark.parametrize(
    ("key", "break_it"),
    [
        (keys.segment(1, 4), lambda path: damage(path, -40)),
        (keys.segment(0, 2), lambda path: damage(path, -40)),
        (keys.checkpoint(1, 1), lambda path: damage(path, 3)),
        (keys.checkpoint(1, 1), lambda path: path.write_bytes(b"")),
        (keys.broker("a"), lambda path: path.write_bytes(b"[]")),
        ("parquet/topic=flights/stray.parquet", lambda path: (path.parent.mkdir(parents=True), path.write_bytes(b"?"))),
    ],
)
def test_every_damaged_object_of_a_cluster_is_named(root: Path, key: str, break_it: Callable[[Path], object]) -> None:
    if (root / key).exists():
        (root / key).chmod(0o644)
    break_it(root / key)
    code, found = run.json("cluster", root)
    assert code == 6
    assert {f["object_key"] for f in found["findings"]} == {key}


def test_damage_inside_of_a_batch_is_found_by_a_full_look_at_the_cluster(root: Path) -> None:
    (batch_row,) = run.json("segment", root, 1, 5)[1]["batches"]
    damage(root / keys.segment(1, 5), batch_row["position"] + batch_row["bytes"] - 1)
    code, found = run.json("cluster", root, "--full")
    assert code == 6
    assert [f["object_key"] for f in found["findings"]] == [keys.segment(1, 5)]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("cluster", "{empty}"), 4, "there is no cluster at"),
        (("segment", "{root}", 1, 99), 4, "OBJECT_MISSING"),
        (("checkpoint", "{root}", 1, 99), 4, "OBJECT_MISSING"),
        (("ledger", "{root}", 3), 2, "bundles 0 to 2"),
        (("ledger", "ftp://x", 1), 2, "INVALID_CONFIG"),
        (("ledger", "{root}", "x"), 2, "BUNDLE"),
        (("segment", "{root}", 1, 0), 2, "SLOT"),
        (("segment", "{root}", 1, 2**64), 2, "SLOT"),
        (("checkpoint", "{root}", 1, 10**25), 2, "NUMBER"),
        (("checkpoint", "{root}", 10**25), 2, "BUNDLE"),
        (("ledger", "file:///a%00b", 1), 2, "INVALID_CONFIG"),
    ],
)
def test_errors(root: Path, tmp_path: Path, arguments: tuple[object, ...], code: int, text: str) -> None:
    given = [str(a).format(root=root, empty=tmp_path / "empty") for a in arguments]
    found, _, stderr = run(*given)
    assert found == code
    assert text in stderr
    assert "Traceback" not in stderr


def test_inspecting_changes_nothing(root: Path) -> None:
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    run("cluster", root, "--full")
    run("ledger", root, 1)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


STRANGE = ("x y.json", "caf\u00e9.json", "2", "\u0662", "new\nline", "\udcff.json")


def test_files_of_a_hidden_topic_are_counted_as_others(tmp_path: Path) -> None:
    async def fill() -> None:
        async with file_store(tmp_path / "hidden") as store:
            made = await Root.open(store, Sources())
            await made.create_topic("__delayed_far", partitions=2, internal_kind="hidden")
            await made.produce("__delayed_far", (0, [b"a", b"b"]), (1, [b"c"]))
            assert not (await made.compact()).failures

    asyncio.run(fill())
    code, found = run.json("cluster", tmp_path / "hidden")
    assert code == 0
    [far] = [topic for topic in found["topics"] if topic["topic"] == "__delayed_far"]
    assert (far["records"], far["in_parquet"], far["parquet_files"]) == (3, 3, 2)
    assert far["parquet_bytes"] > 0
    (tmp_path / "hidden" / "hidden" / "notes.parquet").write_bytes(b"?")
    code, found = run.json("cluster", tmp_path / "hidden")
    assert [(f["code"], f["object_key"]) for f in found["findings"]] == [("FOREIGN_OBJECT", "hidden/notes.parquet")]
    assert "Spark" not in found["findings"][0]["problem"]


def test_files_of_others_are_named_and_passed_over(root: Path) -> None:
    folders = ("brokers", "ledgers/0001/segments", "ledgers/0001/checkpoints", "ledgers/0001/compactions", "parquet")
    for folder in folders:
        for name in STRANGE:
            (root / folder).mkdir(parents=True, exist_ok=True)
            (root / folder / name).write_bytes(b"{}")
    code, found = run.json("cluster", root)
    assert code == 6
    assert {f["code"] for f in found["findings"]} == {"FOREIGN_OBJECT"}
    assert len(found["findings"]) == len(folders) * len(STRANGE)
    code, found = run.json("ledger", root, 1)
    assert [s["slot"] for s in found["segments"] if s["state"] != "foreign"] == [1, 2, 3, 4, 5]
