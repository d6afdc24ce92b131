"""Parquet compaction of a whole root as a Spark job: everything that is in segments now becomes Parquet.

    spark-submit spark/job.py ROOT [BUNDLE …]

ROOT is a root URL such as s3://bucket/prefix or file:///folder; without bundle numbers all bundles are compacted. Executors reach ROOT by
themselves: they need the packages `ledgermq`, `ledger` and `spark` (installed, or by --py-files), pyarrow, and on S3 credentials in their
environment, for a task carries no secret. Exit status: 0 all done, 1 at least one
bundle could not be compacted or a partition is parked, 2 wrong usage or no cluster at ROOT.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ledger.object_store.open import open_store
from ledger.parquet.report import CompactionReport, Progress
from ledger.parquet.runner import compact_root
from ledgermq.errors import LedgerMQError
from ledgermq.sources import Sources
from spark.engine import SparkEngine
from spark.session import open_session


async def compact(root: str, spark: SparkSession, bundles: Sequence[int] | None = None) -> CompactionReport:
    """Raises InvalidConfig where `root` is no cluster, the store's errors."""
    sources = Sources()
    async with await open_store(root, sources=sources) as store:
        return await compact_root(store, sources, SparkEngine(spark), bundles=bundles, on_progress=_show)


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0].startswith("-") or not all(number.isdigit() for number in arguments[1:]):
        print(__doc__, file=sys.stderr)
        return 2
    spark = open_session()
    try:
        report = asyncio.run(compact(arguments[0], spark, [int(number) for number in arguments[1:]] or None))
    except LedgerMQError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    finally:
        spark.stop()
    return _summarize(report)


def _show(progress: Progress) -> None:
    print(
        f"bundle {progress.bundle} plan {progress.plan}: {progress.files_done} of {progress.files_total} files, "
        f"{progress.records_done} of {progress.records_total} records",
        flush=True,
    )


def _summarize(report: CompactionReport) -> int:
    print(f"{report.records} records in {report.files} Parquet files, {report.source_bytes} bytes became {report.stored_bytes}")
    for parked in report.parked:
        print(f"parked: {parked.topic} partition {parked.partition}: {parked.object_key}: {parked.reason}", file=sys.stderr)
    for bundle, error in report.failures.items():
        print(f"bundle {bundle}: {error.message}", file=sys.stderr)
    return 1 if report.failures or report.parked else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
