"""A peer that cannot start is left out with its reason, and the others are measured all the same."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bench.peers import DISKLESS, DURABILITY, LEFT_OUT, OTHERS, s2, started
from bench.peers.go_client import GoPeer, Sending
from bench.peers.peer import Peer, served
from infra.cargo_binary import CargoBinary
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
    assert set(DISKLESS) <= set(OTHERS)


TOOL = CargoBinary("no-such-tool", "NO_SUCH_TOOL", "1.2.", "tool@1.2.3", "server", 10)


def tool_that_says(folder: Path, words: str) -> Path:
    path = folder / "tool"
    path.write_text(f"#!/bin/sh\necho '{words}'\n")
    path.chmod(0o755)
    return path


def test_a_server_in_rust_is_found_by_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tool_that_says(tmp_path, "tool 1.2.9")
    monkeypatch.setenv("NO_SUCH_TOOL", str(path))
    assert TOOL.path() == path


def test_without_a_server_in_rust_it_is_said_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_TOOL", raising=False)
    with pytest.raises(SystemExit, match=r"no no-such-tool.*cargo install --locked tool@1\.2\.3.*set NO_SUCH_TOOL"):
        TOOL.path()


@pytest.mark.parametrize("words", ["tool 1.3.0", "tool 1.20.0", ""])
def test_a_server_of_another_version_is_not_measured(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page names the version."""
    monkeypatch.setenv("NO_SUCH_TOOL", str(tool_that_says(tmp_path, words)))
    with pytest.raises(SystemExit, match="cargo install"):
        TOOL.path()


@pytest.mark.parametrize(("value_bytes", "records"), [(100, 1000), (1000, 1000), (10_000, 104)])
def test_s2_is_sent_as_much_at_once_as_it_takes(value_bytes: int, records: int) -> None:
    assert s2.sending(value_bytes).batch == records
    assert s2.sending(value_bytes).window == records * s2.BATCHES_IN_FLIGHT
