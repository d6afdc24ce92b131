"""What an operator meets: healthy containers without rights, figures in Prometheus, Parquet for
Spark, clear words about wrong settings.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import ClientError

import ledgermq
from infra.grafana.dashboard import queries
from ledgermq.sources import Sources
from ledgermq_ledger import keys
from ledgermq_ledger.root.open import open_store
from tests.compose.project import BROKERS, SERVICES, Project, default
from tests.compose.traffic import Traffic, traffic_on
from tests.waiting import wait_until
from tests.worlds.every_feature import NARROW, USED, use_every_feature

pytestmark = [pytest.mark.compose, pytest.mark.timeout(3600)]  # the first test builds the images

WAIT_S_MAX = 180.0
PROCESSES = (*BROKERS, "compactor")


@pytest.mark.parametrize("service", SERVICES)
def test_a_container_has_bounds_and_no_rights(project: Project, service: str) -> None:
    found = project.inspect(service)
    host, user = found["HostConfig"], found["Config"]["User"]
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert not host["Privileged"]
    assert host["Memory"] > 0
    assert host["NanoCpus"] > 0
    assert host["PidsLimit"] > 0
    assert host["RestartPolicy"]["Name"] == "unless-stopped"
    assert host["LogConfig"]["Config"]["max-size"]
    assert int(user.partition(":")[0]) > 0
    status = project.docker("exec", project.container(service), "cat", "/proc/1/status")
    facts = dict(line.split(":", 1) for line in status.splitlines())
    assert 0 not in map(int, facts["Uid"].split())
    assert int(facts["CapEff"], 16) == 0
    assert int(facts["NoNewPrivs"]) == 1
    refused = project.docker("exec", project.container(service), "touch", "/usr/bin/new", check=False)
    assert "Read-only file system" in refused


def test_ports_are_published_on_this_machine_only(project: Project) -> None:
    published = [
        port
        for service in SERVICES
        for ports in project.inspect(service)["NetworkSettings"]["Ports"].values()
        for port in ports or ()
    ]
    assert len(published) == 9
    assert {port["HostIp"] for port in published} == {"127.0.0.1"}


def test_the_command_line_works_from_here_and_in_a_container(project: Project) -> None:
    command = [sys.executable, "-m", "ledgermq.cli.main", "status", "--output", "json", "--target", project.target]
    here = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert here.returncode == 0, here.stdout + here.stderr
    token = os.environ["LEDGERMQ_TOKEN"]
    without = {name: value for name, value in os.environ.items() if name != "LEDGERMQ_TOKEN"}
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=without)
    assert refused.returncode == 7
    assert "serves no callers without credentials" in refused.stderr
    assert not any(token in project.logs(service) for service in PROCESSES)
    there = project.docker(
        "exec", "-e", f"LEDGERMQ_TOKEN={token}", project.container("broker-1"), "ledgermq", "status", "--output", "json"
    )
    for said in (here.stdout, there):
        known = {broker["broker"]: broker["address"] for broker in json.loads(said)["brokers"] if broker["alive"]}
        assert known == {f"broker-{number}": project.address(f"BROKER_{number}_PORT") for number in (1, 2, 3)}


def test_each_process_has_a_key_of_its_own_in_the_store(project: Project) -> None:
    """Brokers and the compaction service had the administrator's, which opens and deletes every bucket."""
    keys_of: dict[str, set[str]] = {}
    for service in PROCESSES:
        environment = dict(entry.split("=", 1) for entry in project.inspect(service)["Config"]["Env"])
        keys_of.setdefault(environment["AWS_ACCESS_KEY_ID"], set()).add(service)
        assert project.values["STORE_SECRET_KEY"] not in environment.values()
    assert keys_of == {"ledgermq-broker": set(BROKERS), "ledgermq-compactor": {"compactor"}}
    for user in ("BROKER", "COMPACTOR", "READER"):
        s3 = botocore.session.get_session().create_client(
            "s3",
            endpoint_url=f"http://{project.address('MINIO_PORT')}",
            region_name="us-east-1",
            aws_access_key_id=default(f"{user}_ACCESS_KEY"),
            aws_secret_access_key=project.values[f"{user}_SECRET_KEY"],
        )
        assert s3.list_objects_v2(Bucket="ledgermq", Prefix="main/")["KeyCount"]
        for call in (
            partial(s3.create_bucket, Bucket="other"),
            partial(s3.delete_bucket, Bucket="ledgermq"),
            partial(s3.put_object, Bucket="ledgermq", Key="elsewhere/x", Body=b""),
        ):
            with pytest.raises(ClientError, match="AccessDenied"):
                call()


async def compacted_to(project: Project, topic: str) -> dict[int, int]:
    """The end of Parquet by partition."""
    ends: dict[int, int] = {}
    async with await open_store(project.root_url, sources=Sources()) as store:
        async for info in store.list(keys.PARQUET):
            name = keys.parse_parquet(info.key)
            if name is not None and name.topic == topic:
                ends[name.partition] = max(ends.get(name.partition, 0), name.last_offset + 1)
    return ends


def counts_by_spark(project: Project) -> list[dict[str, Any]]:
    root = urllib.parse.urlsplit(project.root_url)
    command = [
        sys.executable,
        str(Path(__file__).with_name("spark_counts.py")),
        f"s3a://{root.netloc}{root.path}/parquet",
    ]
    endpoint = urllib.parse.parse_qs(root.query)["endpoint"][0]
    environment = os.environ | project.credentials
    done = subprocess.run(
        [*command, endpoint], capture_output=True, text=True, env=environment, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


async def test_the_compaction_service_writes_parquet_that_spark_reads_over_s3a(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in project.credentials.items():
        monkeypatch.setenv(name, value)
    async with traffic_on(project.target, "for-spark") as traffic:
        await traffic.more(1000)
    wanted = {partition: len(values) for partition, values in traffic.sent.items()}
    end = time.monotonic() + WAIT_S_MAX
    while (ends := await compacted_to(project, "for-spark")) != wanted:
        assert time.monotonic() < end, f"Parquet ends at {ends}, not at {wanted}"
        await asyncio.sleep(1)
    assert '"event": "compacted"' in project.logs("compactor")
    assert not any('"event": "compacted"' in project.logs(broker) for broker in BROKERS)
    found = await asyncio.to_thread(counts_by_spark, project)
    assert sorted((row for row in found if row["topic"] == "for-spark"), key=lambda row: row["partition"]) == expected(
        traffic
    )


def expected(traffic: Traffic) -> list[dict[str, Any]]:
    return [
        {
            "topic": traffic.topic,
            "partition": partition,
            "rows": len(values),
            "offsets": len(values),
            "first": 0,
            "last": len(values) - 1,
            "crc": sum(map(zlib.crc32, values)),
        }
        for partition, values in traffic.sent.items()
    ]


def ask_prometheus(project: Project, path: str, **arguments: str) -> Any:
    url = f"http://{project.address('PROMETHEUS_PORT')}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)["data"]


def test_prometheus_sees_every_process(project: Project) -> None:
    def up() -> set[str]:
        found = ask_prometheus(project, "query", query="up == 1 and ledgermq_ready == 1")["result"]
        return {sample["metric"]["instance"].partition(":")[0] for sample in found}

    wait_until(lambda: up() == set(PROCESSES), WAIT_S_MAX, every_s=1, what="all processes are up")
    [brokers] = ask_prometheus(
        project, "query", query=next(query for query in queries() if "ledgermq_broker_info" in query)
    )["result"]
    assert float(brokers["value"][1]) == len(BROKERS), "the compaction service is no broker"
    rules = ask_prometheus(project, "rules")["groups"][0]["rules"]
    assert len(rules) > 10
    assert {rule["health"] for rule in rules} == {"ok"}


async def test_every_query_of_the_dashboard_has_data(project: Project) -> None:
    """And the features that it shows are counted, once each was used."""
    async with traffic_on(project.target, "for-the-dashboard") as traffic:
        await traffic.more(1000)
    async with ledgermq.connect(project.target) as client:
        await client.access.grant(NARROW, "produce", "narrow")
        token = await client.access.create_token(NARROW.removeprefix("user:"))
        async with ledgermq.connect(project.target, token=token.token) as narrow:
            await use_every_feature(client, narrow)

    def empty() -> list[str]:
        asked = [*queries(used=False), *(f"sum({counter}) > 0" for counter in USED.values())]
        return [query for query in asked if not ask_prometheus(project, "query", query=query)["result"]]

    await asyncio.to_thread(wait_until, lambda: not empty(), WAIT_S_MAX, every_s=1, what="every query is answered")


@pytest.mark.parametrize(
    ("service", "variable", "status", "words"),
    [
        ("broker-1", "AWS_SECRET_ACCESS_KEY=wrong-password", 7, "credentials"),
        ("compactor", "AWS_SECRET_ACCESS_KEY=wrong-password", 7, "credentials"),
        ("broker-1", "LEDGERMQ_ROOT=s3://other-bucket/main?endpoint=http://minio:9000", 7, "AccessDenied"),
        ("broker-1", "LEDGERMQ_FLUSH_BYTE=1000000", 2, "did you mean LEDGERMQ_FLUSH_BYTES?"),
        ("broker-1", "LEDGERMQ_ADMIN_PORT=9650", 2, "cannot listen on 0.0.0.0:9650"),
        ("broker-1", "LEDGERMQ_CONFIG=/etc/ledgermq/other.toml", 2, "/etc/ledgermq/other.toml"),
    ],
)
def test_what_is_set_wrong_is_told_in_one_line(
    project: Project, service: str, variable: str, status: int, words: str
) -> None:
    identity = ("LEDGERMQ_BROKER_ID=wrong", "LEDGERMQ_ADVERTISED_ADDRESS=wrong:9650") if service in BROKERS else ()
    ended_with, said = project.run_once(service, variable, *identity)
    assert words in said.strip().splitlines()[-1]
    assert "Traceback" not in said
    assert ended_with == status


def test_a_bucket_that_cannot_be_made_is_told_in_one_line_and_one_that_exists_is_left_alone(project: Project) -> None:
    ended_with, said = project.run_once("bucket", "AWS_SECRET_ACCESS_KEY=wrong-password")
    assert "bucket ledgermq cannot be made: SignatureDoesNotMatch" in said
    assert "Traceback" not in said
    assert ended_with == 1
    ended_with, said = project.run_once("bucket")
    assert "bucket ledgermq exists" in said
    assert ended_with == 0


def test_a_port_that_is_taken_is_named(project: Project, tmp_path: Path) -> None:
    other = Project(
        tmp_path, project.values | {"COMPOSE_PROJECT_NAME": f"{project.name}-other"}, name=f"{project.name}-other"
    )
    try:
        with pytest.raises(RuntimeError, match=f"{project.values['PROMETHEUS_PORT']}.*(allocated|in use)"):
            other.compose("up", "-d", "--no-build", "--no-deps", "prometheus")
    finally:
        other.down()


def test_without_an_env_file_compose_says_what_to_do(project: Project, tmp_path: Path) -> None:
    empty = Project(tmp_path, project.values | {"STORE_SECRET_KEY": ""}, name=project.name)
    with pytest.raises(RuntimeError, match=r"copy \.env\.example to \.env"):
        empty.compose("config", "-q")
