"""Places that a principal, another user of the machine, or a hostile object chooses: where brokers connect with
their own credentials, files of secrets, terminals, pipes in a root.
"""

from __future__ import annotations

import asyncio
import os
import pty
import shutil
import socket
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ledgermq.errors import InvalidConfig, InvalidRequest
from tests.attacks.cluster import Attacked

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "ledgermq.cli.main"]
ENDS_S_MAX = 120.0


def run(at: Attacked, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as the operator, with the mask that most machines have."""
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=ENDS_S_MAX,
        check=False,
        umask=0o022,
        env={**os.environ, "LEDGERMQ_TOKEN": at.tokens["root"]},
    )


async def test_no_topic_sends_a_broker_elsewhere(shared_broker: Attacked, tmp_path: Path) -> None:
    """Any principal that may create or alter a topic named a host, to which retention then sent the brokers'
    credentials, or a folder of the broker's user.
    """
    with socket.create_server(("127.0.0.1", 0)) as trap:
        port = trap.getsockname()[1]
        async with shared_broker.client("mallory") as client:
            await client.create_topic("mine-plain", 1)
            for url in (
                f"s3://anybucket/pre?endpoint=http://127.0.0.1:{port}",
                f"hdfs://127.0.0.1:{port}/archive",
                "s3://anybucket/pre",
                (tmp_path / "elsewhere").as_uri(),
            ):
                wanted = {"delete.action": "archive", "retention.ms": "1000", "archive.url": url}
                with pytest.raises((InvalidConfig, InvalidRequest), match=r"archive\.url"):
                    await client.create_topic("mine-archived", 1, settings=wanted)
                with pytest.raises((InvalidConfig, InvalidRequest), match=r"archive\.url"):
                    await client.alter_topic("mine-plain", settings=wanted)
        trap.settimeout(0.5)
        with pytest.raises(TimeoutError):
            trap.accept()
    assert not (tmp_path / "elsewhere").exists()


async def test_files_with_secrets_are_for_their_user_only(shared_broker: Attacked, tmp_path: Path) -> None:
    """The audit log and tokens were 0644 under the usual mask."""
    saved = tmp_path / "shop.token"
    arguments = ("token", "create", "saver", "--target", shared_broker.broker.address, "--save", str(saved))
    done = await asyncio.to_thread(run, shared_broker, *arguments)
    assert done.returncode == 0, done.stderr
    assert saved.read_text().strip() not in done.stdout + done.stderr
    for file in (saved, shared_broker.audit):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name


async def test_a_value_does_nothing_to_the_terminal_of_its_reader(shared_broker: Attacked) -> None:
    """It set the title, and made two messages of one."""
    async with shared_broker.client("victim") as client, client.producer() as producer:
        await client.create_topic("screen", 1)
        await producer.send("screen", b"\x1b]0;pwned\x07\r\nforged line\x9b2J", key=b"\x1b[2J", partition=0)
    shown = await asyncio.to_thread(at_terminal, shared_broker, "consume", "screen", "--until-end")
    assert b"pwned" in shown
    [line] = [line for line in shown.splitlines() if b"pwned" in line]
    assert b"forged line" in line
    assert not [code for code in (b"\x1b]", b"\x07", b"\x1b[2J", b"\x9b") if code in shown]


def at_terminal(at: Attacked, *arguments: str) -> bytes:
    """Everything that a command writes to its terminal."""
    terminal, its_end = pty.openpty()
    environment = {**os.environ, "LEDGERMQ_TOKEN": at.tokens["root"]}
    command = [*COMMAND, *arguments, "--target", at.broker.address]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=its_end, stderr=its_end, env=environment)
    os.close(its_end)
    found = b""
    try:
        while data := os.read(terminal, 65_536):
            found += data
    except OSError:  # the command has closed its end
        pass
    finally:
        os.close(terminal)
        process.wait(ENDS_S_MAX)
    return found


@pytest.mark.parametrize("command", [("fsck",), ("inspect", "cluster")], ids=" ".join)
async def test_a_pipe_in_a_root_holds_up_no_command(
    shared_broker: Attacked, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Commands that read a root opened it, and waited for a writer for good."""
    async with shared_broker.client("victim") as client, client.producer() as producer:
        await producer.send("orders", b"x")
    root = tmp_path / "root"
    shutil.copytree(urlsplit(shared_broker.processes.root_url).path, root)
    folder = root / "ledgers" / "0001" / "segments"
    os.mkfifo(folder / f"{max(int(each.name) for each in folder.iterdir() if each.name.isdigit()) + 1:020d}")
    done = await asyncio.to_thread(run, shared_broker, *command, root.as_uri())
    assert "Traceback" not in done.stderr
    if command == ("fsck",):
        assert done.returncode != 0
        assert "segments" in done.stdout + done.stderr
