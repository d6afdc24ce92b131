"""Open the store of a container in Azure Blob Storage, or of a bucket in Google Cloud Storage.

It is `S3Store` over other wires: obstore sends single objects, the vendor's own library lists, deletes and
signs. A put creates by `If-None-Match: *` on Azure, by `x-goog-if-generation-match: 0` on Google. Fences close by
age, as on S3: both refuse a signed URL that has expired.
"""

from __future__ import annotations

import asyncio

from ledgermq_ledger.object_store.clouds.location import CloudLocation, parse_cloud_url
from ledgermq_ledger.object_store.s3.store import S3Store


async def open_azure(url: str) -> S3Store:
    """Open an az:// URL; it sends nothing yet. Raises InvalidConfig, Unauthorized (no credentials), ImportError."""
    from ledgermq_ledger.object_store.clouds.azure import azure_wires  # late: its packages are an extra

    location: CloudLocation = parse_cloud_url(url)
    return S3Store(location, *await asyncio.to_thread(azure_wires, location))


async def open_gcs(url: str) -> S3Store:
    """Open a gs:// URL; at most it asks for credentials yet. Raises as `open_azure`."""
    from ledgermq_ledger.object_store.clouds.gcs import gcs_wires  # late: its packages are an extra

    location: CloudLocation = parse_cloud_url(url)
    return S3Store(location, *await asyncio.to_thread(gcs_wires, location))
