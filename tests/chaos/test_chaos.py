"""The deciding parts of `make chaos`: schedules, a plain reader's gaps, retention, and that no
process outlives a run.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tests.chaos.children import PROJECT, Children
from tests.chaos.judge import judge_history, judge_logs
from tests.chaos.measures import Measures
from tests.chaos.plain_reader import PlainReader
from tests.chaos.schedule import ALL_KINDS, OF_A_REMOTE_STORE, Kind, Part, Trouble, schedule
from tests.chaos.workload import PARTITIONS, RETENTION_MS, TOPICS, Workload
from tests.servers.cutting_proxy import NEVER, cutting_proxy
from tests.simulation.history import Gone, Outcome, Partition, Poll

BROKERS, MEMBERS = 3, 5


def over(trouble: Trouble) -> float:
    return trouble.at_s + trouble.lasts_s


@pytest.mark.parametrize("seed", range(20))
def test_a_schedule_follows_from_its_seed_and_keeps_its_bounds(seed: int) -> None:
    troubles = schedule(seed, 200, 800, BROKERS, MEMBERS)
    assert troubles == schedule(seed, 200, 800, BROKERS, MEMBERS)
    assert troubles != schedule(seed + 1, 200, 800, BROKERS, MEMBERS)
    assert len(troubles) == 200
    assert [t.at_s for t in troubles] == sorted(t.at_s for t in troubles)
    assert max(map(over, troubles)) < 840
    for part in Part:
        for who in (None, *range(MEMBERS)):
            mine = [t for t in troubles if t.part is part and t.who in (who, None)]
            assert all(over(a) <= b.at_s + 0.01 for a, b in pairwise(mine)), "the same thing has one trouble at a time"


def test_all_kinds_happen_and_a_folder_has_neither_lines_nor_server() -> None:
    kinds = {t.kind for seed in range(3) for t in schedule(seed, 200, 800, BROKERS, MEMBERS)}
    assert kinds == ALL_KINDS
    of_a_folder = {t.kind for t in schedule(0, 200, 800, BROKERS, MEMBERS, ALL_KINDS - OF_A_REMOTE_STORE)}
    assert not of_a_folder & OF_A_REMOTE_STORE
    assert Kind.PAUSE_LONG in of_a_folder


async def test_a_line_that_is_held_delivers_late_and_one_that_is_cut_not_at_all() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()
        ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, asyncio.timeout(20), cutting_proxy(f"http://127.0.0.1:{port}", 0, NEVER) as proxy:
        host, _, proxy_port = proxy.address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(proxy_port))
        writer.write(b"a")
        assert await reader.read(1) == b"a"
        proxy.hold()
        writer.write(b"b")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await reader.read(1)
        proxy.restore()
        assert await reader.read(1) == b"b"
        proxy.cut_off()
        with pytest.raises(ConnectionError):
            await reader.readexactly(1)
        writer.close()
        await ended.wait()


def file_of(folder: Path, partition: Partition, first: int, last: int) -> Path:
    path = folder / f"topic={partition[0]}" / f"partition={partition[1]}" / f"{first:020d}-{last:020d}-7-1.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    offsets = list(range(first, last + 1))
    pq.write_table(pa.table({"offset": offsets, "value": [f"p.{offset}|x".encode() for offset in offsets]}), path)
    return path


def test_a_plain_reader_sees_a_gap_only_where_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "parquet"
    first, second = file_of(folder, ("main", 0), 0, 4), file_of(folder, ("main", 0), 5, 6)
    file_of(folder, ("main", 0), 7, 9)
    (folder / "_tmp").mkdir()
    (folder / "_tmp" / "half.parquet").touch()
    plain = PlainReader(fs.LocalFileSystem(), str(folder))
    [read] = plain.look()
    assert read.files == ((0, 4), (5, 6), (7, 9))
    second.unlink()
    [read] = plain.look()
    assert read.files == ((0, 4), (7, 9)), "a gap that stays is seen"
    names = plain.names

    def before_a_deletion() -> object:
        seen = names()
        first.unlink(missing_ok=True)
        return seen

    monkeypatch.setattr(plain, "names", before_a_deletion)
    [read] = plain.look()
    assert read.files == ((7, 9),), "a list that met a deletion is no gap"
    assert plain.looks["list that met a deletion"] == 1


def workload() -> Workload:
    work = Workload("127.0.0.1:1", 0, Measures(0.0))
    for i in range(4):
        op = work.history.begin_produce("p", ("brief", 0), (f"p.{i}",))
        work.history.end_produce(op, Outcome.OK, i)
        work.sent_ms[f"p.{i}"] = 1_000
    return work


def judged(work: Workload, stored: dict[Partition, dict[int, str]], log_start: int) -> set[str]:
    starts = {(topic, number): 0 for topic in TOPICS for number in range(PARTITIONS)} | {("brief", 0): log_start}
    return {violation.kind for violation in judge_history(work, stored, starts, [])}


async def test_what_retention_took_is_not_lost_and_what_it_may_not_take_yet_is() -> None:
    kept = {("brief", 0): {2: "p.2", 3: "p.3"}}
    work = workload()
    work.history.add(Poll("r", ("brief", 0), ((0, "p.0"),)))
    work.log_starts.append((("brief", 0), 2, 1_000 + RETENTION_MS))
    assert judged(work, kept, 2) == set()
    assert judged(work, kept, 0) == {"removed too early"}, "the first file is above the log start"
    assert judged(work, {("brief", 0): {3: "p.3"}}, 2) == {"removed too early"}
    assert judged(work, {("brief", 0): {2: "p.3", 3: "p.2"}}, 2) >= {"lost write", "reordered"}
    assert judged(work, {("brief", 0): {2: "p.2"}}, 2) == {"lost write"}
    work.log_starts.append((("brief", 0), 1, 999 + RETENTION_MS))
    assert judged(work, kept, 2) == {"removed too early"}, "a millisecond too young"
    work = workload()
    assert "log start" in {
        v.kind for v in judge_history(work, kept, dict.fromkeys(_all(), 0) | {("main", 1): 5, ("brief", 0): 2}, [])
    }


def test_a_topic_that_was_deleted_is_judged_by_what_was_seen_of_it() -> None:
    def work_with(*polls: tuple[int, str]) -> Workload:
        work = Workload("127.0.0.1:1", 0, Measures(0.0))
        for name, offset in (("t.0", 0), ("t.1", 1)):
            op = work.history.begin_produce("t", ("temp#7", 0), (name,))
            work.history.end_produce(op, Outcome.OK, offset)
        for poll in polls:
            work.history.add(Poll("r", ("temp#7", 0), (poll,)))
        return work

    assert judged(work_with((0, "t.0"), (1, "t.1")), {}, 0) == set()
    assert judged(work_with(), {}, 0) == set(), "retention deleted it before a consumer read it"
    assert judged(work_with((0, "t.1")), {}, 0) >= {"inconsistent offsets"}
    assert judged(work_with((1, "t.1")), {}, 0) == {"poll skip"}
    assert "phantom" in judged(work_with((0, "old.5")), {}, 0)
    gone = work_with((0, "t.0"))
    gone.history.add(Gone("temp#7"))
    gone.history.add(Poll("late", ("temp#7", 0), ((0, "t.0"),)))
    assert judged(gone, {}, 0) == {"read after removal"}


GRPC_TELLS = """\
2026-11-21T15:31:58.152215Z [error    ] Exception not handled by _handle_exceptions in servicer method\
 [/ledgermq.v1.Broker/GroupHeartbeat] broker=b
Traceback (most recent call last):
  File "src/python/grpcio/grpc/_cython/_cygrpc/aio/server.pyx.pxi", line 710, in _handle_exceptions
asyncio.exceptions.CancelledError
2026-11-21T15:32:19.561394Z [info     ] compacted                      broker=b bundle=2
"""


def test_a_log_may_hold_what_grpc_tells_of_a_stop_and_no_other_trace(tmp_path: Path) -> None:
    (tmp_path / "broker-0.1.log").write_text(GRPC_TELLS)
    assert judge_logs(tmp_path) == []
    (tmp_path / "broker-0.2.log").write_text(GRPC_TELLS + "Traceback (most recent call last):\n")
    [violation] = judge_logs(tmp_path)
    assert violation.text.startswith("broker-0.2.log, line 2 (1 such lines)")


def _all() -> list[Partition]:
    return [(topic, number) for topic in TOPICS for number in range(PARTITIONS)]


SPAWNS = """
import sys, time
from pathlib import Path
from tests.chaos.children import Children
child = Children(Path(sys.argv[1])).spawn("sleeper", ["sleep", "300"])
print(child._process.pid, flush=True)
time.sleep(300)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent death signal")
def test_no_child_outlives_a_run_that_is_killed(tmp_path: Path) -> None:
    run = subprocess.Popen([sys.executable, "-c", SPAWNS, str(tmp_path)], stdout=subprocess.PIPE, cwd=PROJECT)
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    until = time.monotonic() + 20
    while Path(f"/proc/{pid}/comm").read_text() != "sleep\n":  # what guards it does so before it becomes what it guards
        assert time.monotonic() < until
        time.sleep(0.02)
    run.kill()
    run.wait()
    run.stdout.close()
    while Path(f"/proc/{pid}").exists() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < until
        time.sleep(0.02)


async def test_closing_ends_paused_children_too(tmp_path: Path) -> None:
    import signal

    children = Children(tmp_path)
    child = children.spawn("sleeper", ["sleep", "300"])
    child.signal(signal.SIGSTOP)
    children.close()
    assert child.code == -signal.SIGKILL
