"""Objects are encrypted as the root URL says, whichever request puts them: plain, conditional, fenced."""

from __future__ import annotations

from typing import Any

import botocore.session
import pytest

from infra.minio import Minio
from ledgermq_ledger.object_store.contract import AlreadyExists
from ledgermq_ledger.object_store.s3.location import parse_s3_url
from ledgermq_ledger.object_store.s3.store import CLIENTS, open_s3

KMS_KEY = Minio("").kms_key


def heads(root: str) -> Any:
    location = parse_s3_url(root)
    client: Any = botocore.session.get_session().create_client(
        "s3", endpoint_url=location.endpoint, region_name="us-east-1"
    )
    return lambda key: client.head_object(Bucket=location.bucket, Key=f"{location.prefix}/{key}")


async def _encrypted(root: str, library: str, query: str, expected: str | None, key: str | None) -> None:
    head = heads(root)
    store = await open_s3(root + query, library)
    async with store:
        await store.put("plain", b"1")
        await store.put_if_absent("created", [b"2", b"3"])
        with pytest.raises(AlreadyExists):
            await store.put_if_absent("created", [b"other"])
        fenced = await store.fenced_puts("round", ["fenced"], 60_000)
        await fenced.put_if_absent("fenced", [b"4"])
        for name, data in (("plain", b"1"), ("created", b"23"), ("fenced", b"4")):
            assert await store.get(name) == data
            assert bytes(await store.get_range(name, 0, 1)) == data[:1]
            found = head(name)
            assert found.get("ServerSideEncryption") == expected, name
            if key is not None:
                assert found["SSEKMSKeyId"].endswith(key)


CASES = [("", None, None), ("&sse=AES256", "AES256", None), (f"&sse=aws:kms&kms_key={KMS_KEY}", "aws:kms", KMS_KEY)]


@pytest.mark.real
@pytest.mark.parametrize("library", CLIENTS)
@pytest.mark.parametrize(("query", "expected", "key"), CASES)
async def test_minio_encrypts_every_object(
    minio_root: str, library: str, query: str, expected: str | None, key: str | None
) -> None:
    await _encrypted(minio_root, library, query, expected, key)


@pytest.mark.parametrize("library", CLIENTS)
@pytest.mark.parametrize(("query", "expected", "key"), CASES[1:])
async def test_every_put_asks_for_encryption(
    moto_root: str, library: str, query: str, expected: str | None, key: str | None
) -> None:
    await _encrypted(moto_root, library, query, expected, key)


@pytest.mark.real
async def test_a_key_that_does_not_exist_is_an_error(minio_root: str) -> None:
    async with await open_s3(f"{minio_root}&sse=aws:kms&kms_key=no-such-key") as store:
        with pytest.raises(Exception, match=r"(?i)key"):
            await store.put("one", b"1")
