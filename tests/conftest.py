"""Fixtures for every test: seeded sources, and roots in S3 servers (one server a test run, an own
prefix for each test).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from infra import hdfs as hdfs_server
from infra import postgres as postgres_server
from infra.hdfs import Hdfs
from infra.minio import Minio, running
from infra.postgres import Postgres
from ledgermq.sources import Sources
from tests.servers import clouds
from tests.servers.clouds import Cloud
from tests.stores.backends import create_bucket, seeded_sources

pytest_plugins = ["tests.running_time", "tests.parts"]

BUCKET = "ledgermq-test"
_numbers = itertools.count(1)

# Two shared cores, tests side by side: how long an example takes says nothing about the code.
settings.register_profile("ledgermq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ledgermq")


@pytest.fixture
def sources() -> Sources:
    return seeded_sources()


@pytest.fixture(scope="session")
def minio() -> Iterator[Minio]:
    """A real server; tests that use it are marked `real`."""
    with running() as server:
        create_bucket(server, BUCKET)
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[Minio]:
    """moto's server: it looks at no signature, no credentials and no expiry."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    found = Minio(f"http://{host}:{port}", "moto", "moto-secret")
    create_bucket(found, BUCKET)
    yield found
    server.stop()


@pytest.fixture(scope="session")
def azurite() -> Iterator[Cloud]:
    """An emulator of Azure's store; tests that use it are marked `real`."""
    with clouds.azure() as cloud:
        yield cloud


@pytest.fixture
def azure_root(azurite: Cloud, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh az:// root URL; the environment opens it, in child processes too."""
    return _cloud_root(azurite, monkeypatch)


@pytest.fixture(scope="session")
def fake_gcs() -> Iterator[Cloud]:
    """An emulator of Google's store; tests that use it are marked `real`."""
    with clouds.gcs() as cloud:
        yield cloud


@pytest.fixture
def gcs_root(fake_gcs: Cloud, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh gs:// root URL; the environment opens it, in child processes too."""
    return _cloud_root(fake_gcs, monkeypatch)


def _cloud_root(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in cloud.variables.items():
        monkeypatch.setenv(name, value)
    return cloud.url(f"root-{next(_numbers)}")


@pytest.fixture(scope="session")
def hdfs() -> Iterator[Hdfs]:
    """A real NameNode and three DataNodes; tests that use it are marked `real`."""
    with hdfs_server.running() as server:
        yield server


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL with an empty database, for one test, which may kill and restart it; tests
    that use it are marked `real`.
    """
    with postgres_server.running() as server:
        yield server


@pytest.fixture
def hdfs_root(hdfs: Hdfs) -> str:
    """A fresh hdfs:// root URL."""
    return f"{hdfs.url}/tests/root-{next(_numbers)}"


@pytest.fixture
def minio_root(minio: Minio, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh s3:// root URL; AWS_* in the environment open it, in child processes too."""
    return _root(minio, monkeypatch)


@pytest.fixture
def moto_root(moto: Minio, monkeypatch: pytest.MonkeyPatch) -> str:
    return _root(moto, monkeypatch)


def _root(server: Minio, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    for name in (
        "AWS_PROFILE",
        "AWS_SESSION_TOKEN",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
    ):
        monkeypatch.delenv(name, raising=False)
    return f"s3://{BUCKET}/root-{next(_numbers)}?endpoint={server.endpoint}&region=us-east-1"
