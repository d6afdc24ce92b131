"""Implement `S3Wire` by aiobotocore (`AiobotocoreWire`), which is botocore over aiohttp.

Works in the event loop that opened it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.handlers import add_expect_header

from ledgermq_ledger.object_store.contract import Buffer
from ledgermq_ledger.object_store.s3.location import S3Location
from ledgermq_ledger.object_store.s3.signed_wire import (
    botocore_errors,
    configuration,
    configuration_errors,
    raise_failed,
    region_of,
)
from ledgermq_ledger.object_store.s3.wire import (
    READERS_MAX,
    WRITERS_MAX,
    S3Object,
    S3RangesIgnored,
    S3Silent,
    S3Wire,
    put_s_max,
)


async def open_aiobotocore(location: S3Location) -> AiobotocoreWire:
    """Sends nothing yet. Raises InvalidConfig."""
    with configuration_errors():
        session = get_session()
        client = await session.create_client(
            "s3",
            endpoint_url=location.endpoint,
            region_name=region_of(location, session),
            config=AioConfig(**configuration(location, READERS_MAX + WRITERS_MAX)),
        ).__aenter__()
    client.meta.events.unregister(
        "before-call.s3", add_expect_header
    )  # aiohttp would wait for a "100 Continue" without end
    return AiobotocoreWire(location.bucket, client)


class AiobotocoreWire(S3Wire):
    def __init__(self, bucket: str, client: Any) -> None:
        self._bucket = bucket
        self._client = client

    async def put(self, name: str, buffers: Sequence[Buffer], *, only_if_absent: bool) -> None:
        body = b"".join(buffers)
        condition = {"IfNoneMatch": "*"} if only_if_absent else {}
        async with _errors(put_s_max(len(body))):
            await self._client.put_object(Bucket=self._bucket, Key=name, Body=body, **condition)

    async def get(self, name: str) -> bytes:
        return await self._get(name)

    async def get_range(self, name: str, start: int, length: int) -> bytes:
        return await self._get(name, Range=f"bytes={start}-{start + length - 1}")

    async def get_suffix(self, name: str, length: int) -> bytes:
        return await self._get(name, Range=f"bytes=-{length}")

    async def head(self, name: str) -> S3Object:
        async with _errors():
            found = await self._client.head_object(Bucket=self._bucket, Key=name)
        return S3Object(found["ContentLength"], found["ETag"].strip('"'), int(found["LastModified"].timestamp() * 1000))

    async def list_page(
        self, prefix: str, start_after: str, token: str | None
    ) -> tuple[list[dict[str, Any]], str | None]:
        place = {"ContinuationToken": token} if token else {"StartAfter": start_after} if start_after else {}
        async with _errors(of_bucket=True):
            page = await self._client.list_objects_v2(Bucket=self._bucket, Prefix=prefix, **place)
        return page.get("Contents", []), page.get("NextContinuationToken")

    async def delete(self, names: Sequence[str]) -> None:
        if len(names) == 1:
            async with _errors():
                await self._client.delete_object(Bucket=self._bucket, Key=names[0])
            return
        wanted = {"Objects": [{"Key": name} for name in names], "Quiet": True}
        async with _errors(of_bucket=True):
            answer = await self._client.delete_objects(Bucket=self._bucket, Delete=wanted)
        raise_failed(answer.get("Errors", []))

    async def close(self) -> None:
        await self._client.close()

    async def _get(self, name: str, **wanted: str) -> bytes:
        async with _errors():
            answer = await self._client.get_object(Bucket=self._bucket, Key=name, **wanted)
            async with answer["Body"] as body:
                data = bytes(await body.read())
        if wanted and data and answer["ResponseMetadata"]["HTTPStatusCode"] == 200:
            raise S3RangesIgnored
        return data


@asynccontextmanager
async def _errors(seconds_max: float | None = None, *, of_bucket: bool = False) -> AsyncIterator[None]:
    with botocore_errors(of_bucket=of_bucket):
        try:
            async with asyncio.timeout(seconds_max):
                yield
        except TimeoutError:
            raise S3Silent("the upload took too long") from None
        except (aiohttp.ClientError, OSError) as error:  # only aiohttp reads the body
            raise S3Silent(type(error).__name__) from error
