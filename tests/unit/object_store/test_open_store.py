"""Root URLs: what opens, and what a wrong one is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ledgermq.errors import InvalidConfig, Unauthorized
from ledgermq.sources import Sources
from ledgermq_ledger.object_store.s3.location import S3Location, parse_s3_url
from ledgermq_ledger.root.open import open_store
from tests.stores.counting import CountingMeter


async def test_a_file_root_is_opened_again_by_its_url(tmp_path: Path, sources: Sources) -> None:
    folder = tmp_path / "with space, ä and %20"
    async with await open_store(folder.as_uri(), sources=sources) as store:
        await store.put_if_absent("a/b", [b"x"])
        url = store.url
    assert (folder / "a" / "b").read_bytes() == b"x"
    async with await open_store(url, sources=sources) as store:
        assert await store.get("a/b") == b"x"


async def test_memory_roots_of_one_name_are_one_store(sources: Sources) -> None:
    name = "shared-by-name"
    first = await open_store(f"memory://{name}", sources=sources)
    await first.put_if_absent("a", [b"x"])
    await first.close()
    again = await open_store(first.url, sources=sources)
    assert await again.get("a") == b"x"
    other = await open_store(f"memory://{name}/other", sources=sources)
    assert [info.key async for info in other.list("")] == []


@pytest.mark.parametrize(
    "url",
    [
        "",
        "data",
        "./data",
        "/data",
        "file:data",
        "file:./data",
        "file://data",
        "file://host/data",
        "file:///a?b=c",
        "file:///a#b",
        "file:///a%00b",
        "s3://bucket?region=a%20b",
        "s3://bucket?region=\udcff",
        "s3://bucket?endpoint=http://h\udcff:1",
        "ftp://a/b",
        "S4://a",
    ],
)
async def test_a_wrong_root_url_is_told_what_is_wrong(url: str, sources: Sources) -> None:
    with pytest.raises(InvalidConfig, match="root URL"):
        await open_store(url, sources=sources)


@pytest.mark.parametrize(
    "url", ["hdfs:///folder", "hdfs://namenode:8020", "hdfs://namenode:8020/folder?x=1", "hdfs://namenode:8020/f#x"]
)
async def test_hdfs_needs_a_namenode_and_a_folder(sources: Sources, url: str) -> None:
    with pytest.raises(InvalidConfig, match="HDFS URL"):
        await open_store(url, sources=sources)


async def test_hdfs_is_opened_without_asking_it_anything(sources: Sources) -> None:
    async with await open_store("hdfs://127.0.0.1:1/folder", sources=sources) as store:
        assert store.url == "hdfs://127.0.0.1:1/folder"


async def test_hdfs_without_its_extra(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ledgermq_ledger.object_store.hdfs.store", raising=False)
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(InvalidConfig, match=r'pip install "ledgermq\[hdfs\]"'):
        await open_store("hdfs://namenode:8020/root", sources=sources)


class NotInstalled:
    """As if a package were not there."""

    def __init__(self, package: str) -> None:
        self._package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == self._package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


async def test_s3_without_its_extra(sources: Sources, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("ledgermq_ledger.object_store.s3")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == "botocore"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NotInstalled("botocore"), *sys.meta_path])
    with pytest.raises(InvalidConfig, match=r'pip install "ledgermq\[s3\]"'):
        await open_store("s3://bucket/root", sources=sources)


async def test_s3_without_credentials(sources: Sources, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(Unauthorized, match="AWS_ACCESS_KEY_ID"):
        await open_store("s3://bucket/root", sources=sources)


@pytest.mark.parametrize(
    ("name", "value"),
    [("AWS_PROFILE", "nobody"), ("AWS_ENDPOINT_URL", "not a url"), ("AWS_DEFAULT_REGION", "no such region!")],
)
async def test_s3_with_a_wrong_environment(
    sources: Sources, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidConfig, match="AWS configuration"):
        await open_store("s3://bucket/root", sources=sources)


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("s3://bucket", S3Location("bucket")),
        ("s3://bucket/", S3Location("bucket")),
        ("s3://my.bucket-1/a/b_c=d/", S3Location("my.bucket-1", "a/b_c=d")),
        ("s3://bucket/a?region=eu-central-1", S3Location("bucket", "a", region="eu-central-1")),
        ("s3://bucket?sse=AES256", S3Location("bucket", sse="AES256")),
        ("s3://bucket?sse=aws:kms&kms_key=alias/k-1", S3Location("bucket", sse="aws:kms", kms_key="alias/k-1")),
        (
            "s3://bucket/a?endpoint=http://127.0.0.1:9000&path_style=true",
            S3Location("bucket", "a", endpoint="http://127.0.0.1:9000", path_style=True),
        ),
        (
            "s3://bucket/a?endpoint=https%3A%2F%2Fs3.example.com&path_style=false",
            S3Location("bucket", "a", "https://s3.example.com", None, False),
        ),
    ],
)
def test_s3_urls(url: str, location: S3Location) -> None:
    assert parse_s3_url(url) == location
    assert parse_s3_url(location.url) == location


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///key",
        "s3://a",
        "s3://bucket:80/a",
        "s3://bucket/a//b",
        "s3://bucket/a/../b",
        "s3://bucket/ä",
        "s3://bucket/" + "x" * 200,
        "s3://bucket/a?endpoint=127.0.0.1:9000",
        "s3://bucket/a?endpoint=",
        "s3://bucket/a?endpoint=http://host:notaport",
        "s3://bucket/a?endpoint=http://user:hush@host",
        "s3://bucket/a?endpoint=http://host/path",
        "s3://bucket/a?path_style=maybe",
        "s3://bucket/a?sse=yes",
        "s3://bucket/a?sse=AES256&kms_key=k",
        "s3://bucket/a?kms_key=k",
        "s3://bucket/a?client=botocore",
        "s3://bucket/a?secret_access_key=hush",
        "s3://key:hush@bucket/a",
        "s3://bucket--usw2-az1--x-s3/a",
    ],
)
def test_wrong_s3_urls_are_refused_and_secrets_not_repeated(url: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        parse_s3_url(url)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("scheme", ["file", "memory"])
async def test_a_meter_is_told_of_every_request(tmp_path: Path, sources: Sources, scheme: str) -> None:
    meter = CountingMeter()
    url = tmp_path.as_uri() if scheme == "file" else "memory://metered"
    async with await open_store(url, sources=sources, in_flight_max=2, meter=meter) as store:
        await store.put_if_absent("a", [b"x"])
        assert await store.get("a") == b"x"
    assert (meter.requests("put_if_absent"), meter.requests("get")) == (1, 1)
