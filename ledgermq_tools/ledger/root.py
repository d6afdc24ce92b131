"""Declare the arguments ROOT and BUNDLE of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from ledgermq_ledger.cluster import BUNDLES_MAX

Root = Annotated[
    str,
    typer.Argument(
        metavar="ROOT", help="Root URL of the cluster (file:///…, s3://…, az://…, gs://…, hdfs://…), or a local folder."
    ),
]
Bundle = Annotated[
    int,
    typer.Argument(min=0, max=BUNDLES_MAX - 1, metavar="BUNDLE", help="Number of the bundle; 0 holds the metadata."),
]
