"""Run Parquet compaction of a whole root as a Spark job: everything that is in segments now becomes
Parquet.

    spark-submit spark/job.py ROOT [BUNDLE …] [--every INTERVAL] [--output table|json]

ROOT is a root URL such as s3://bucket/prefix or file:///folder; without bundle numbers all bundles
are compacted. With --every 30s it runs as a service, by the topics' size and lag settings, until
SIGTERM. Executors reach ROOT by themselves: they need `ledgermq[spark]` installed (docs/spark.md
shows how to send it along), and on S3 credentials in their environment, because a task carries no
secret. Any number of jobs may run on one root. Exit status: as of `ledgermq compact` (0 all done, 2
wrong usage, 3 try again, 4 no cluster at ROOT, …), and 1 where a partition is parked.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from ledgermq.cli.arguments.options import OutputFormat
from ledgermq.cli.output.exit_codes import exit_code
from ledgermq.cli.output.report import show
from ledgermq.errors import LedgerMQError
from ledgermq.sources import Sources
from ledgermq_ledger.open_root import check_bundles, fitting_cluster_of, opened
from ledgermq_ledger.parquet.report import CompactionReport, Progress
from ledgermq_ledger.rounds.runner import compact_root
from ledgermq_spark.engine import SparkEngine
from ledgermq_spark.session import open_session
from ledgermq_tools.ledger.compact.report import compaction_report, progress_line
from ledgermq_tools.ledger.compact.service import parse_interval_s, serve


async def compact(root: str, spark: SparkSession, bundles: Sequence[int] | None = None) -> CompactionReport:
    """Compact the root. Raises InvalidConfig if `root` is no cluster, and the store's errors."""
    sources = Sources()
    async with opened(root, sources) as store:
        await check_bundles(store, await fitting_cluster_of(store), bundles)
        return await compact_root(store, sources, SparkEngine(spark), bundles=bundles, on_progress=_print_progress)


def main(arguments: Sequence[str]) -> int:
    try:
        chosen = _parse(arguments)
        interval_s = parse_interval_s(chosen.every) if chosen.every else None
    except LedgerMQError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    except (SystemExit, argparse.ArgumentError):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        return _run(chosen, interval_s)
    except LedgerMQError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return exit_code(error)


def _run(chosen: argparse.Namespace, interval_s: float | None) -> int:
    """Run the job; return its exit status."""
    spark = open_session()
    try:
        if interval_s is not None:
            asyncio.run(_serve(chosen, spark, interval_s))
            return 0
        return asyncio.run(_once(chosen, spark))
    finally:
        spark.stop()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("root")
    parser.add_argument("bundles", nargs="*", type=int)
    parser.add_argument("--every")
    parser.add_argument("--output", type=OutputFormat, default=OutputFormat.TABLE)
    return parser.parse_args(arguments)


async def _serve(chosen: argparse.Namespace, spark: SparkSession, interval_s: float) -> None:
    sources = Sources()
    async with opened(chosen.root, sources) as store:
        cluster = await fitting_cluster_of(store)
        await check_bundles(store, cluster, chosen.bundles)
        await serve(store, cluster, sources, SparkEngine(spark), interval_s, chosen.output, chosen.bundles or None)


async def _once(chosen: argparse.Namespace, spark: SparkSession) -> int:
    """Run once; return the exit status."""
    started = asyncio.get_running_loop().time()
    done = await compact(chosen.root, spark, chosen.bundles or None)
    show(
        compaction_report(done, "spark", asyncio.get_running_loop().time() - started, Sources().now_ms()), chosen.output
    )
    if done.failures:
        return exit_code(next(iter(done.failures.values())))
    return 1 if done.parked else 0


def _print_progress(progress: Progress) -> None:
    print(progress_line(progress), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
