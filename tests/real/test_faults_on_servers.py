"""A bucket that may only be read: brokers refuse it in one line, everything that only reads works."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.minio import Minio
from ledgermq.cli.output.exit_codes import ExitCode
from ledgermq.sources import Sources
from ledgermq_ledger.root.open import open_store
from tests.conftest import BUCKET
from tests.e2e.processes import BrokerProcesses
from tests.worlds.source_readers import batch_reader
from tests.worlds.source_root import fill

pytestmark = pytest.mark.real

MAY_READ = ["s3:GetObject", "s3:ListBucket", "s3:GetBucketLocation"]


def read_only_credentials(server: Minio) -> dict[str, str]:
    """Temporary ones, whose policy has no PUT and no DELETE, as variables."""
    import botocore.session

    keys = {"aws_access_key_id": server.access_key, "aws_secret_access_key": server.secret_key}
    client: Any = botocore.session.get_session().create_client(
        "sts", endpoint_url=server.endpoint, region_name="us-east-1", **keys
    )
    resources = [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"]
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": MAY_READ, "Resource": resources}]}
    found = client.assume_role(RoleArn="arn:xxx:xxx:xxx:xxxx", RoleSessionName="reader", Policy=json.dumps(policy))[
        "Credentials"
    ]
    client.close()
    return {
        "AWS_ACCESS_KEY_ID": found["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": found["SecretAccessKey"],
        "AWS_SESSION_TOKEN": found["SessionToken"],
    }


async def objects(root: str) -> dict[str, str]:
    async with await open_store(root, sources=Sources()) as store:
        return {info.key: info.etag async for info in store.list("")}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ledgermq.cli.main", *command], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_bucket_that_may_only_be_read(
    tmp_path: Path, minio: Minio, minio_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(fill(minio_root))
    before = asyncio.run(objects(minio_root))
    for name, value in read_only_credentials(minio).items():
        monkeypatch.setenv(name, value)
    with BrokerProcesses(tmp_path, minio_root) as brokers:
        broker = brokers.spawn()
        assert brokers.wait(broker) == ExitCode.REFUSED
        last = broker.text().splitlines()[-1]
        assert "UNAUTHORIZED" in last
        assert "AccessDenied" in last
        assert "Traceback" not in broker.text()
    compaction = run("compact", minio_root)
    assert compaction.returncode == ExitCode.REFUSED, compaction.stderr
    assert "Traceback" not in compaction.stderr
    checked = run("fsck", minio_root, "--output", "json")
    assert checked.returncode in (ExitCode.OK, ExitCode.UNTIDY), checked.stdout
    assert run("inspect", "cluster", minio_root).returncode == ExitCode.OK
    reader = batch_reader({"root": minio_root, "topic": "t"})
    assert sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part)) == 24
    assert asyncio.run(objects(minio_root)) == before
