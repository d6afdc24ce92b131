"""Choose where the demo keeps its cluster: a local folder that it empties first, or a new root in
S3 or HDFS.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

HADOOP_AWS = "org.apache.hadoop:hadoop-aws:3.5.0"
"""Spark's way to s3a://, of the version of Hadoop that PySpark brings; downloaded by Spark itself,
once.
"""


@dataclass(frozen=True)
class Root:
    """`folder`: None unless the root is local."""

    url: str
    folder: Path | None = None

    @property
    def argument(self) -> str:
        """Return the root as an argument in a shell."""
        return f"'{self.url}'" if self.folder is None else str(self.folder)

    @property
    def parquet(self) -> str:
        """Return the path for `spark.read.parquet`."""
        if self.folder is not None:
            return f"{self.folder}/parquet"
        parts = urlsplit(self.url)
        return f"{'s3a' if parts.scheme == 's3' else parts.scheme}://{parts.netloc}{parts.path}/parquet"

    @property
    def spark_settings(self) -> dict[str, str]:
        """Return the settings that Spark needs to read there; credentials come from the
        environment.
        """
        if not self.url.startswith("s3:"):
            return {}
        query = parse_qs(urlsplit(self.url).query)
        settings = {"spark.jars.packages": HADOOP_AWS}
        if "endpoint" in query:
            settings |= {
                "spark.hadoop.fs.s3a.endpoint": query["endpoint"][0],
                "spark.hadoop.fs.s3a.path.style.access": "true",
            }
        if "region" in query:
            settings["spark.hadoop.fs.s3a.endpoint.region"] = query["region"][0]
        return settings

    def make_empty(self) -> None:
        """Delete what an earlier run left behind.

        Raises RuntimeError for a folder that holds anything else.
        """
        if self.folder is None:
            return
        if self.folder.exists() and any(self.folder.iterdir()) and not (self.folder / "cluster.json").exists():
            raise RuntimeError(f"{self.folder} is neither empty nor a root of LedgerMQ; it stays as it is")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)


def root_of(argument: str) -> Root:
    """Return the root of a URL or a folder."""
    if "://" in argument:
        return Root(argument.rstrip("/"))
    return Root(Path(argument).absolute().as_uri(), Path(argument))
