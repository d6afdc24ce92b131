"""Each process has exactly the policy of docs/security.md on MinIO: it works, and may do nothing else."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import botocore.session
import pyarrow as pa
import pytest
from botocore.exceptions import ClientError
from pyarrow import dataset, fs

import ledgermq.sync
from infra.minio import CLIENT, Minio
from ledgermq_spark.source.data_source import LedgerMQDataSource
from tests.conftest import BUCKET
from tests.e2e.processes import QUICK, BrokerProcesses

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.timeout(1200)]

POLICIES = Path(__file__).parents[2] / "infra" / "compose" / "minio" / "policies"
"""Those that docs/security.md shows."""
RECORDS = 300


class Roles:
    """Credentials for each policy: users that the script of infra/compose/ makes, else of MinIO's STS."""

    def __init__(self, server: Minio, root: str) -> None:
        self._server = server
        self._prefix = root.partition("?")[0].removeprefix(f"s3://{BUCKET}/")
        self._users = {name: (f"test-{name}", secrets.token_hex(16)) for name in ("broker", "compactor", "reader")}
        self._make_users(root)
        self._make_users(root)  # as each `docker compose up` does

    def _make_users(self, root: str) -> None:
        environment = {
            "PATH": f"{CLIENT.install().parent}{os.pathsep}{os.environ['PATH']}",
            "POLICIES": str(POLICIES),
            "LEDGERMQ_ROOT": root,
            "MINIO_ROOT_USER": self._server.access_key,
            "MINIO_ROOT_PASSWORD": self._server.secret_key,
        }
        for name, (user, secret) in self._users.items():
            environment |= {f"{name.upper()}_ACCESS_KEY": user, f"{name.upper()}_SECRET_KEY": secret}
        command = ["bash", str(POLICIES.parent / "make_users.sh")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
        assert done.returncode == 0, done.stderr
        assert not any(secret in done.stdout + done.stderr for _, secret in self._users.values())

    def client(self, service: str, variables: dict[str, str]) -> Any:
        return botocore.session.get_session().create_client(
            service,
            endpoint_url=self._server.endpoint,
            region_name="us-east-1",
            aws_access_key_id=variables["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
            aws_session_token=variables.get("AWS_SESSION_TOKEN"),
        )

    @property
    def owner(self) -> dict[str, str]:
        return {"AWS_ACCESS_KEY_ID": self._server.access_key, "AWS_SECRET_ACCESS_KEY": self._server.secret_key}

    def variables(self, name: str) -> dict[str, str]:
        if name in self._users:
            return dict(zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), self._users[name], strict=True))
        policy = (POLICIES / f"{name}.json").read_text().replace("BUCKET", BUCKET).replace("PREFIX", self._prefix)
        answer = self.client("sts", self.owner).assume_role(
            RoleArn="arn:aws:iam::000000000000:role/test",
            RoleSessionName=name,
            Policy=json.dumps(json.loads(policy)),
            DurationSeconds=3600,
        )["Credentials"]
        return {
            "AWS_ACCESS_KEY_ID": answer["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": answer["SecretAccessKey"],
            "AWS_SESSION_TOKEN": answer["SessionToken"],
        }

    def s3(self, name: str) -> Any:
        return self.client("s3", self.variables(name))


def denied(call: Callable[[], object]) -> bool:
    try:
        call()
    except ClientError as error:
        return bool(error.response["Error"]["Code"] == "AccessDenied")
    return False


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ledgermq.cli.main", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env={**os.environ, **variables}
    )


def broker_works(roles: Roles, minio_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker creates the cluster, stores records, and another one takes over."""
    for name, value in roles.variables("broker").items():
        monkeypatch.setenv(name, value)
    with BrokerProcesses(tmp_path, minio_root, (*QUICK, "--bundles=3")) as brokers:
        first = brokers.start()
        with ledgermq.sync.connect(first.address, timeout_s=90) as client:
            for topic in ("orders", "salaries"):
                client.create_topic(topic, 2)
                with client.producer() as producer:
                    producer.send_many(topic, [b"%d" % number for number in range(RECORDS)])
        brokers.kill(first)
        second = brokers.start()
        with ledgermq.sync.connect(second.address, timeout_s=90) as client:
            assert client.read_arrow("orders").num_rows == RECORDS
        assert brokers.stop(second) == 0
    s3 = roles.s3("broker")
    assert denied(lambda: s3.put_object(Bucket=BUCKET, Key="elsewhere/x", Body=b""))
    assert denied(lambda: s3.list_objects_v2(Bucket=BUCKET, Prefix="elsewhere/"))


def compactor_works(roles: Roles, minio_root: str, prefix: str) -> None:
    """A compactor turns them into Parquet, but cannot write a segment."""
    compacted = run("compact", minio_root, **roles.variables("compactor"))
    assert compacted.returncode == 0, compacted.stderr
    collected = run("gc", minio_root, **roles.variables("compactor"))
    assert collected.returncode == 0, collected.stderr
    s3 = roles.s3("compactor")
    segment = f"{prefix}/ledgers/0001/segments/{999:020d}"
    assert denied(lambda: s3.put_object(Bucket=BUCKET, Key=segment, Body=b""))
    assert denied(lambda: s3.put_object(Bucket=BUCKET, Key=f"{prefix}/brokers/me.json", Body=b""))
    assert denied(lambda: s3.put_object(Bucket=BUCKET, Key=f"{prefix}/cluster.json", Body=b""))


def reader_works(roles: Roles, minio_root: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's source reads everything, and changes nothing. Driver and executors run these methods."""
    for name, value in roles.variables("reader").items():
        monkeypatch.setenv(name, value)
    source = LedgerMQDataSource({"root": minio_root, "topic": "orders"})
    reader = source.reader(source.schema())
    found = pa.Table.from_batches([batch for part in reader.partitions() for batch in reader.read(part)])
    assert found.num_rows == RECORDS
    assert run("fsck", minio_root, **roles.variables("reader")).returncode == 0
    assert run("inspect", "cluster", minio_root, **roles.variables("reader")).returncode == 0
    s3 = roles.s3("reader")
    some = s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/parquet/")["Contents"][0]["Key"]
    assert denied(lambda: s3.put_object(Bucket=BUCKET, Key=f"{prefix}/sinks/x", Body=b""))
    assert denied(lambda: s3.delete_object(Bucket=BUCKET, Key=some))


def plain_reader_works(minio: Minio, roles: Roles, prefix: str) -> None:
    """A plain reader of one topic reads its Parquet files, and nothing else."""
    plain = roles.variables("plain")
    assert rows_of(minio, plain, f"{BUCKET}/{prefix}/parquet/topic=orders/") == RECORDS
    with pytest.raises(OSError, match=r"(?i)access.?denied"):
        rows_of(minio, plain, f"{BUCKET}/{prefix}/parquet/topic=salaries/")
    s3 = roles.s3("plain")
    others = [
        each["Key"]
        for each in roles.client("s3", roles.owner).list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/")["Contents"]
        if f"{prefix}/parquet/topic=orders/" not in each["Key"]
    ]
    assert any("topic=salaries" in key for key in others)
    assert any("/segments/" in key for key in others)
    for key in others:
        assert denied(lambda key=key: s3.get_object(Bucket=BUCKET, Key=key))  # type: ignore[misc]
    for folder in ("", f"{prefix}/", f"{prefix}/ledgers/", f"{prefix}/parquet/topic=salaries/"):
        assert denied(lambda folder=folder: s3.list_objects_v2(Bucket=BUCKET, Prefix=folder))  # type: ignore[misc]


def test_each_process_works_with_its_policy_and_may_do_nothing_else(
    minio: Minio, minio_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = minio_root.partition("?")[0].removeprefix(f"s3://{BUCKET}/")
    roles = Roles(minio, minio_root)
    broker_works(roles, minio_root, tmp_path, monkeypatch)
    compactor_works(roles, minio_root, prefix)
    reader_works(roles, minio_root, prefix, monkeypatch)
    plain_reader_works(minio, roles, prefix)


def rows_of(server: Minio, variables: dict[str, str], folder: str) -> int:
    """Read Parquet files as a person does who knows nothing of LedgerMQ."""
    store = fs.S3FileSystem(
        access_key=variables["AWS_ACCESS_KEY_ID"],
        secret_key=variables["AWS_SECRET_ACCESS_KEY"],
        session_token=variables["AWS_SESSION_TOKEN"],
        endpoint_override=server.endpoint,
        region="us-east-1",
    )
    files = [found.path for found in store.get_file_info(fs.FileSelector(folder, recursive=True)) if found.is_file]
    return int(dataset.dataset(files, filesystem=store).to_table().num_rows)
