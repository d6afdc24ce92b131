"""Declare and parse the options of `df.write.format("ledgermq")` and
`df.writeStream.format("ledgermq")`. No Spark, no store.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Literal, get_args

from ledgermq.buffers import MIB
from ledgermq.client.connection.target import parse_addresses
from ledgermq.client.setting_types import ProducerOptions
from ledgermq.client.settings.producers import ProducerSettings
from ledgermq.errors import InvalidConfig
from ledgermq.protocol.batches.records import Compression
from ledgermq_spark.options import (
    ConnectionOptions,
    above_zero,
    check_servers,
    known_options,
    names_of,
    one_of,
    option,
    parse_known,
    switch,
)

_OF_SPARK = ("checkpointlocation", "queryname", "outputmode")
"""Options of the query itself, which Spark passes on."""

_WRITE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_=-]{0,99}\Z")
Delivery = Literal["exactlyOnce", "atLeastOnce"]


def _write_id(name: str, text: str) -> str:
    if not _WRITE_ID.match(text):
        allowed = "1 to 100 letters, digits, '_', '=' and '-', the first a letter or a digit"
        raise InvalidConfig(f"{name} has {allowed}, not {text!r}")
    return text


def _write_epoch(_: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise _wrong_epoch(text)
    return int(text)


def _wrong_epoch(text: str) -> InvalidConfig:
    return InvalidConfig(f"writeEpoch is a number from 0 on that goes with writeId, not {text!r}")


@dataclass(frozen=True, slots=True)
class SinkOptions(ConnectionOptions):
    """The options, one field each; `ledgermq_spark.options` has the rules."""

    servers: str = option(MISSING)
    """brokers: `host:port`, separated by commas"""
    topic: str = option("")
    """where all rows go"""
    delivery: Delivery = one_of("exactlyOnce", get_args(Delivery))
    """or `atLeastOnce`"""
    transactional: bool = switch(False)
    """with `exactlyOnce`: a micro-batch, or a `df.write`, is one transaction. Readers see nothing of
    it before it is committed, and tasks need only brokers
    """
    transaction_timeout_s: float = above_zero(900.0, "seconds")
    """with `transactional`: the cluster aborts a micro-batch that is not committed so long after its
    first rows, and the query fails. At most what the cluster allows
    """
    root: str = option("", shown="the brokers' answer")
    """root URL of the cluster as executors reach it; only for `exactlyOnce`. With `transactional` only
    the driver needs it
    """
    write_id: str = option("", _write_id)
    """`df.write` only: a name for this write. A repeated write with the same name adds nothing, or
    continues where it stopped
    """
    write_epoch: int = option(0, _write_epoch)
    """with `writeId`: the number of this write under that name. Numbers must rise; in `foreachBatch`
    use the number of the batch
    """
    compression: Compression = one_of("lz4", get_args(Compression))
    """`none`, `lz4`, `zstd`; the topic's own setting has precedence"""
    batch_bytes_max: int = above_zero(MIB, "bytes", "1 MiB")
    """size of a batch of one partition"""
    buffer_bytes_max: int = above_zero(64 * MIB, "bytes", "64 MiB")
    """how much a task, and the driver, hold at once; above that they wait for brokers. A task counts
    8 KB for each partition that it holds rows for: with rows by key for thousands of partitions, a
    larger value makes larger batches
    """
    request_timeout_s: float = above_zero(30.0, "seconds")
    """after this time a request is tried again"""
    delivery_timeout_s: float = above_zero(120.0, "seconds")
    """after this time the write fails. Publishing of a decided write is then begun again, and fails
    when nothing more of it was stored in three tries
    """

    def client_settings(self) -> dict[str, Any]:
        """Return the settings of the clients that driver and tasks make."""
        return {"timeout_s": self.delivery_timeout_s, **self.connection().settings()}

    def producer_settings(self) -> ProducerOptions:
        return {
            "compression": self.compression,
            "batch_bytes_max": self.batch_bytes_max,
            "buffer_bytes_max": self.buffer_bytes_max,
            "request_timeout_s": self.request_timeout_s,
            "delivery_timeout_s": self.delivery_timeout_s,
            "auto_create": False,
        }


NAMES = names_of(SinkOptions)


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse the options. `given`: as Spark passes them, names in any case. Raises InvalidConfig."""
    values = known_options(given, NAMES, _OF_SPARK, {"kafka.bootstrap.servers": "it is servers"})
    if not values.get("servers"):
        raise InvalidConfig('the option servers is missing: brokers of the cluster, as .option("servers", "host:9650")')
    check_servers(values["servers"])
    parse_addresses(values["servers"])
    if streaming and ("writeId" in values or "writeEpoch" in values):
        raise InvalidConfig("writeId is for df.write: a streaming query is known by its checkpoint")
    if "writeEpoch" in values and "writeId" not in values:
        raise _wrong_epoch(values["writeEpoch"])
    options = parse_known(SinkOptions, values)
    if options.write_id and options.delivery != "exactlyOnce":
        raise InvalidConfig("writeId goes with delivery=exactlyOnce")
    if options.transactional and options.delivery != "exactlyOnce":
        raise InvalidConfig("transactional=true goes with delivery=exactlyOnce")
    options.connection()
    ProducerSettings(**options.producer_settings())
    return options
