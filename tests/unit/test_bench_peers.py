"""A peer that cannot start is left out with its reason, and the others are measured all the same."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.peers import DURABILITY, LEFT_OUT, OTHERS, started
from bench.peers.go_client import GoPeer, Sending
from bench.peers.peer import Peer, served
from infra.ports import free_port
from tests.waiting import wait_until


@contextmanager
def starts(folder: Path) -> Iterator[Peer]:
    assert folder.is_dir()
    yield GoPeer("none", 0, "one that starts", "none", lambda _: Sending(1))


@contextmanager
def cannot_be_had(_: Path) -> Iterator[Peer]:
    sys.exit("there is no such package")
    yield


@contextmanager
def ends_at_once(folder: Path) -> Iterator[Peer]:
    with served([sys.executable, "-c", "print('no room'); raise SystemExit(1)"], free_port(), folder / "server.log"):
        yield GoPeer("none", 0, "never", "none", lambda _: Sending(1))


def test_what_cannot_start_is_left_out_with_its_reason(tmp_path: Path) -> None:
    with ExitStack() as stack:
        peers, left_out = started(stack, tmp_path, {"a": cannot_be_had, "b": starts, "c": ends_at_once})
    assert [peer.subject for peer in peers] == ["one that starts"]
    assert left_out["a"] == "there is no such package"
    assert "no room" in left_out["c"]


SERVER = """
import fcntl, socket, sys, time
lock = open(sys.argv[2], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(600)
"""


def test_a_server_is_gone_with_all_that_it_started(tmp_path: Path) -> None:
    """The server's child holds a lock as long as it lives. Its port proves nothing: another process
    of this machine may take it at once.
    """
    port, lock = free_port(), tmp_path / "lock"
    child = [sys.executable, "-c", SERVER, str(port), str(lock)]
    with served([sys.executable, "-c", f"import subprocess; subprocess.run({child!r})"], port, tmp_path / "server.log"):
        assert not free(lock)
    wait_until(lambda: free(lock))


def free(lock: Path) -> bool:
    with lock.open("w") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_the_page_can_say_of_every_peer_what_its_acknowledgement_means() -> None:
    assert set(OTHERS) <= set(DURABILITY)
    assert not set(LEFT_OUT) & set(DURABILITY)
