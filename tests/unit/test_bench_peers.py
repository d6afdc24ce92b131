"""A peer that cannot start is left out with its reason, and the others are measured all the same."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bench.peers import DURABILITY, LEFT_OUT, OTHERS, started
from bench.peers.go_client import GoPeer, Sending
from bench.peers.peer import Peer, served
from infra.ports import free_port


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


def test_a_server_is_gone_with_all_that_it_started(tmp_path: Path) -> None:
    port = free_port()
    listens = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(600)"
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {listens!r}])"]
    with served(command, port, tmp_path / "server.log") as process:
        assert process.poll() is None
    with (
        pytest.raises(RuntimeError, match="did not start"),
        served([sys.executable, "-c", ""], port, tmp_path / "second.log"),
    ):
        pytest.fail("nothing listens on the port any more")


def test_the_page_can_say_of_every_peer_what_its_acknowledgement_means() -> None:
    assert set(OTHERS) <= set(DURABILITY)
    assert not set(LEFT_OUT) & set(DURABILITY)
