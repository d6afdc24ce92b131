"""Rules and tokens on real processes: brokers that prove themselves to each other over gRPC, the
command line, a token file, the audit log, and no secret anywhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import ledgermq
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.errors import Unauthorized
from ledgermq_spark.sink.cluster import opened
from ledgermq_spark.sink.options import parse_options as sink_options
from ledgermq_spark.source.data_source import LedgerMQDataSource
from tests.e2e.processes import QUICK, BrokerProcesses
from tests.e2e.warm_cli import WarmCommands
from tests.waiting import until

OPTIONS = (*QUICK, "--security", "rules", "--super-principals", "user:root")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with WarmCommands(tmp_path_factory.mktemp("c")) as path:
        yield path


class Shell:
    """Runs commands with a token, and keeps all that they print."""

    def __init__(self, program: Path, target: str) -> None:
        self._program = program
        self.target = target
        self.printed = ""

    def __call__(
        self, *words: str, token: str = "", target: str = "", code: int = 0, variables: Mapping[str, str] | None = None
    ) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LEDGERMQ_")}
        if token:
            environment["LEDGERMQ_TOKEN"] = token
        environment |= variables or {}
        done = subprocess.run(
            [self._program, *words, "--target", target or self.target],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stderr
        self.printed += done.stdout + done.stderr
        return done.stdout

    def json(self, *words: str, token: str) -> Any:
        return json.loads(self(*words, "--output", "json", token=token))


def _shown_nowhere(secrets: list[str], texts: list[str], root: Path) -> None:
    stored = [path.read_bytes() for path in root.rglob("*") if path.is_file()]
    for secret in secrets:
        assert not any(secret in text for text in texts)
        assert not any(secret.encode() in data for data in stored)
        assert not any(secret[-20:] in text for text in texts)


@pytest.mark.slow
async def test_a_cluster_with_tokens_from_the_first_one_on(tmp_path: Path, program: Path) -> None:
    root_url = (tmp_path / "root").as_uri()
    audit = tmp_path / "audit.jsonl"
    with BrokerProcesses(tmp_path, root_url, (*OPTIONS, "--log-level", "debug")) as brokers:
        for number in range(2):
            brokers.start("--audit-file", str(audit) + str(number), "--admin-port", "0")
        shell = Shell(program, brokers.addresses)
        assert "without credentials" in _error(shell, "topic", "list")
        root = (await asyncio.to_thread(shell, "token", "create", "root", target=root_url)).strip()
        shell("topic", "create", "orders", "--partitions", "4", token=root)
        shop = shell("token", "create", "shop", "--group", "staff", "--expires-in", "1h", token=root).strip()
        shell("acl", "test", "produce", "orders", token=shop, code=ExitCode.REFUSED)
        rule = shell.json("acl", "grant", "group:staff", "produce,consume", "ord*", token=root)["id"]
        shell("acl", "test", "produce", "orders", token=shop)
        [shown] = shell.json("acl", "list", token=root)["rules"]
        assert (shown["id"], shown["name"], shown["created_by"]) == (rule, "ord*", "user:root")
        listed = shell.json("token", "list", token=root)["tokens"]
        owners = {(each["user"], each["groups"], each["created_by"]) for each in listed}
        assert owners == {("root", "", ""), ("shop", "staff", "user:root")}
        shell("acl", "list", token=shop, code=ExitCode.REFUSED)

        file = tmp_path / "token"
        file.write_text(shop + "\n")
        async with ledgermq.connect(brokers.addresses, token_file=str(file)) as client:
            async with client.producer() as producer:
                for number in range(20):
                    await producer.send("orders", b"x", key=str(number))
            async with client.consumer("orders", start="earliest", until_end=True) as consumer:
                assert len([message async for message in consumer]) == 20
            shop_id = next(each["id"] for each in listed if each["user"] == "shop")
            shell("token", "revoke", shop_id, "--yes", token=root)
            with pytest.raises(Unauthorized):
                await client.list_offsets("orders")
            file.write_text(shell("token", "create", "shop", "--group", "staff", token=root))
            renewed = file.read_text().strip()

            async def works() -> bool:
                try:
                    return bool(await client.list_offsets("orders"))
                except Unauthorized:
                    return False

            await until(works)
        shell("acl", "revoke", rule, "--yes", token=root)
        async with ledgermq.connect(brokers.addresses, token=renewed) as client:
            with pytest.raises(Unauthorized):
                await client.list_offsets("orders")

        secrets = [root, shop, renewed]
        texts = [shell.printed.replace(root, "", 1).replace(shop, "", 1).replace(renewed, "", 1)]
        texts += [broker.text() for broker in brokers.running]
        lines = _lines(audit)
        texts.append(json.dumps(lines))
    _shown_nowhere(secrets, texts, tmp_path / "root")
    said = {(line["event"], line["principal"], line["operation"], line["resource"]) for line in lines}
    assert ("allowed", "user:root", "create", "orders") in said
    assert ("allowed", "user:root", "cluster", "") in said
    assert ("refused", "user:shop", "cluster", "") in said
    assert ("refused", "unknown", "admission", "") in said
    assert all({"timestamp", "connection", "method"} <= line.keys() for line in lines), lines


async def read_by_spark(options: dict[str, str]) -> int:
    """Return how many rows the source finds."""

    def read() -> int:
        source = LedgerMQDataSource({"topic": "orders"} | options)
        reader = source.reader(source.schema())
        return sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))

    return await asyncio.to_thread(read)


async def written_by_spark(options: dict[str, str]) -> str:
    """Return as whom the sink would write."""
    async with opened(sink_options(options, streaming=False)) as place:
        return (await place.client.access.test("produce", "orders")).principal


@pytest.mark.slow
async def test_a_token_comes_from_everywhere(
    tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """SDK, command line, Spark's options, the environment and the settings file; and nothing shows it."""
    root_url = (tmp_path / "root").as_uri()
    with BrokerProcesses(tmp_path, root_url, OPTIONS) as brokers:
        brokers.start()
        shell = Shell(program, brokers.addresses)
        token = (await asyncio.to_thread(shell, "token", "create", "root", target=root_url)).strip()
        shell.printed = ""
        token_file, by_file, by_value = tmp_path / "token", tmp_path / "file.toml", tmp_path / "value.toml"
        token_file.write_text(f"{token}\n")
        by_file.write_text(f'token_file = "{token_file}"\n')
        by_value.write_text(f'token = "{token}"\nport = 1\n')  # brokers may share the file
        sources: list[dict[str, str]] = [
            {"LEDGERMQ_TOKEN": token},
            {"LEDGERMQ_TOKEN_FILE": str(token_file)},
            {"LEDGERMQ_CONFIG": str(by_file)},
            {"LEDGERMQ_CONFIG": str(by_value)},
        ]
        servers = {"servers": brokers.addresses}

        # Nothing gives one: each surface is refused.
        for call in (read_by_spark, written_by_spark):
            with pytest.raises(Unauthorized, match="without credentials"):
                await call(servers)
        shell("topic", "list", code=ExitCode.REFUSED)

        for arguments in ({"token": token}, {"token_file": str(token_file)}):
            async with ledgermq.connect(brokers.addresses, **arguments) as client:
                await client.create_topic("orders", 1, if_not_exists=True)
        for options in ({"token": token}, {"tokenFile": str(token_file)}):
            assert await read_by_spark(servers | options) == 0
            assert await written_by_spark(servers | options) == "user:root"
        for variables in sources:
            assert "orders" in shell("topic", "list", variables=variables)
            with monkeypatch.context() as patched:
                for name, value in variables.items():
                    patched.setenv(name, value)
                async with ledgermq.connect(brokers.addresses) as client:
                    assert [topic.name for topic in await client.list_topics()] == ["orders"]
                assert await read_by_spark(servers) == 0
                assert await written_by_spark(servers) == "user:root"
        assert "orders" in shell("--token-file", str(token_file), "topic", "list")
        shown = await asyncio.to_thread(
            subprocess.run,
            [program, "config", "show"],
            env=os.environ | {"LEDGERMQ_CONFIG": str(by_value)},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert "port" in shown.stdout
        texts = [shell.printed, shown.stdout + shown.stderr, caplog.text]
        texts += [broker.text() for broker in brokers.running]
    assert not any(token in text or token[-20:] in text for text in texts)


def _lines(audit: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for number in range(2) for line in Path(f"{audit}{number}").read_text().splitlines()]


def _error(shell: Shell, *words: str) -> str:
    before = len(shell.printed)
    shell(*words, code=ExitCode.REFUSED)
    return shell.printed[before:]
