"""The stores that this machine can run: a folder with fsync, MinIO (near, and at distances of
S3) and HDFS where they are installed.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bench import distant
from infra import hdfs, java, minio
from tests.stores.backends import create_bucket

FILE, MINIO, DISTANT, HDFS = "file, fsync", "MinIO", "MinIO, as far as S3", "HDFS"
S3_STANDARD, S3_EXPRESS = "MinIO, as late as S3 Standard", "MinIO, as late as S3 Express"
AWAY = {DISTANT: distant.FAR, S3_STANDARD: distant.STANDARD, S3_EXPRESS: distant.EXPRESS}


@contextmanager
def stores(folder: Path, *names: str) -> Iterator[dict[str, Callable[[], str]]]:
    """Return by name what creates an unused root, in stores that run until the block ends.

    A store that is not installed is left out.
    """
    numbers = itertools.count()

    def in_folder() -> str:
        made = folder / f"root-{next(numbers)}"
        made.mkdir()
        return made.as_uri()

    found: dict[str, Callable[[], str]] = {FILE: in_folder}
    with ExitStack() as stack:
        if {MINIO, *AWAY} & {*names} and minio.BINARY.installed() is not None:
            server = stack.enter_context(minio.running())
            create_bucket(server, "bench")
            os.environ.update(AWS_ACCESS_KEY_ID=server.access_key, AWS_SECRET_ACCESS_KEY=server.secret_key)
            endpoints = {MINIO: server.endpoint} | {
                name: stack.enter_context(distant.running(server.endpoint, distance))
                for name, distance in AWAY.items()
                if name in names
            }
            for name, endpoint in endpoints.items():
                found[name] = partial(_in_bucket, endpoint, numbers)
        if HDFS in names and java.installed() is not None:
            namenode = stack.enter_context(hdfs.running())
            found[HDFS] = lambda: f"{namenode.url}/root-{next(numbers)}"
        for name in names:
            if name not in found:
                print(f"{name} is not installed, so it is left out", file=sys.stderr)
        yield {name: found[name] for name in names if name in found}


def _in_bucket(endpoint: str, numbers: Iterator[int]) -> str:
    return f"s3://bench/root-{next(numbers)}?endpoint={endpoint}&region=us-east-1"
