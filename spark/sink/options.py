"""Parse the options of `df.write.format("ledgermq")` and `df.writeStream.format("ledgermq")` into
values. No Spark, no store.

| option           | default     |                                                                                    |
|------------------|-------------|------------------------------------------------------------------------------------|
| servers          |             | brokers, as host:port[,host:port]                                                  |
| topic            |             | where all rows go; without it each row says it in its column `topic`               |
| delivery         | exactlyOnce | or atLeastOnce: tasks send at once, and again if a task or micro-batch is repeated |
| root             | by brokers  | root URL of the cluster, as executors reach it; only exactlyOnce needs it          |
| writeId          |             | `df.write` only: a name for this write; repeating the same one adds nothing        |
| writeEpoch       | 0           | with writeId: the number of this write under that name; numbers rise               |
| compression      | lz4         | none, lz4 or zstd, unless the topic's own setting names one                        |
| batchBytesMax    | 1 MiB       | size of a batch of one partition, before compression                               |
| bufferBytesMax   | 64 MiB      | rows that a task, or the driver, holds at once                                     |
| requestTimeoutS  | 30          | a request that is not answered within this time is tried again                     |
| deliveryTimeoutS | 120         | rows that are not stored within this time fail the task, or the commit             |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from ledgermq.buffers import MIB
from ledgermq.client.settings import ProducerSettings
from ledgermq.client.target import parse_addresses
from ledgermq.errors import InvalidConfig
from ledgermq.protocol.records import Compression
from spark.options import check_servers, known_options

NAMES = (
    "servers",
    "topic",
    "delivery",
    "root",
    "writeId",
    "writeEpoch",
    "compression",
    "batchBytesMax",
    "bufferBytesMax",
    "requestTimeoutS",
    "deliveryTimeoutS",
)
_OF_SPARK = ("checkpointlocation", "queryname", "outputmode")
"""Options of the query itself, which Spark passes on."""

_WRITE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_=-]{0,99}\Z")
Delivery = Literal["exactlyOnce", "atLeastOnce"]


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """`root` and `write_id`: empty where not given."""

    servers: str
    topic: str = ""
    delivery: Delivery = "exactlyOnce"
    root: str = ""
    write_id: str = ""
    write_epoch: int = 0
    compression: Compression = "lz4"
    batch_bytes_max: int = MIB
    buffer_bytes_max: int = 64 * MIB
    request_timeout_s: float = 30.0
    delivery_timeout_s: float = 120.0

    def producer_settings(self) -> dict[str, object]:
        return {
            "compression": self.compression,
            "batch_bytes_max": self.batch_bytes_max,
            "buffer_bytes_max": self.buffer_bytes_max,
            "request_timeout_s": self.request_timeout_s,
            "delivery_timeout_s": self.delivery_timeout_s,
            "auto_create": False,
        }


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Parse the options. `given`: as Spark passes them, names in any case. Raises InvalidConfig."""
    values = known_options(given, NAMES, _OF_SPARK)
    if not values.get("servers"):
        raise InvalidConfig('the option servers is missing: brokers of the cluster, as .option("servers", "host:9650")')
    check_servers(values["servers"])
    parse_addresses(values["servers"])
    _check_write_id(values, streaming)
    options = SinkOptions(
        servers=values["servers"],
        topic=values.get("topic", ""),
        delivery=cast(Delivery, _one_of(values, "delivery", "exactlyOnce", "atLeastOnce")),
        root=values.get("root", ""),
        write_id=values.get("writeId", ""),
        write_epoch=int(values.get("writeEpoch", 0)),
        compression=cast(Compression, _one_of(values, "compression", "lz4", "none", "zstd")),
        batch_bytes_max=int(_number(values, "batchBytesMax", MIB, "bytes, as 1048576")),
        buffer_bytes_max=int(_number(values, "bufferBytesMax", 64 * MIB, "bytes, as 67108864")),
        request_timeout_s=_number(values, "requestTimeoutS", 30.0, "seconds, as 30"),
        delivery_timeout_s=_number(values, "deliveryTimeoutS", 120.0, "seconds, as 120"),
    )
    if options.write_id and options.delivery != "exactlyOnce":
        raise InvalidConfig("writeId goes with delivery=exactlyOnce")
    ProducerSettings(**options.producer_settings())  # type: ignore[arg-type]
    return options


def _check_write_id(values: Mapping[str, str], streaming: bool) -> None:
    if streaming and ("writeId" in values or "writeEpoch" in values):
        raise InvalidConfig("writeId is for df.write: a streaming query is known by its checkpoint")
    if "writeId" in values and not _WRITE_ID.match(values["writeId"]):
        allowed = "1 to 100 letters, digits, '_', '=' and '-', the first a letter or a digit"
        raise InvalidConfig(f"writeId has {allowed}, not {values['writeId']!r}")
    if "writeEpoch" in values and ("writeId" not in values or not re.fullmatch(r"[0-9]{1,18}", values["writeEpoch"])):
        raise InvalidConfig(f"writeEpoch is a number from 0 on that goes with writeId, not {values['writeEpoch']!r}")


def _one_of(values: Mapping[str, str], name: str, default: str, *others: str) -> str:
    given = values.get(name, default).strip().lower()
    for allowed in (default, *others):
        if allowed.lower() == given:
            return allowed
    raise InvalidConfig(f"{name} is one of {', '.join((default, *others))}, not {values[name]!r}")


def _number(values: Mapping[str, str], name: str, default: float, unit: str) -> float:
    text = values.get(name, str(default)).strip()
    if not re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text) or float(text) <= 0:
        raise InvalidConfig(f"{name} is a number of {unit}, above 0, not {text!r}")
    return float(text)
