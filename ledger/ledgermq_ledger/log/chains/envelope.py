"""Wrap every persisted protobuf that is an object by itself: checkpoints, plans, file pages,
snapshots, cuts, lists of merged files.

    | body (protobuf) | body length u64 | CRC-32C of body u32 | format version u16 | kind u16 | magic "LMQOBJ\\r\\n" |

Little endian; 24 bytes after the body. The body of every kind holds its own put id, so two puts
never have equal bytes.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TypeVar

from crc32c import crc32c
from google.protobuf.message import DecodeError, Message

from ledgermq.errors import DataDamaged, FormatNotSupported

FORMAT_VERSION = 1
MAGIC = b"LMQOBJ\r\n"
TRAILER = struct.Struct("<QIHH8s")

M = TypeVar("M", bound=Message)


class ObjectKind(IntEnum):
    CHECKPOINT = 1
    COMPACTION_PLAN = 2
    FILE_PAGE = 3
    SNAPSHOT = 4
    CUT = 5
    MERGED_LIST = 6


def seal(kind: ObjectKind, message: Message, version: int = FORMAT_VERSION) -> bytes:
    body = message.SerializeToString(deterministic=True)
    return body + TRAILER.pack(len(body), crc32c(body), version, kind, MAGIC)


def unseal(kind: ObjectKind, message: M, data: bytes, key: str, newest: int = FORMAT_VERSION) -> M:
    """Parse `data`, of a version up to `newest`, into `message`. Raises DataDamaged or
    FormatNotSupported, naming `key`.
    """
    if len(data) < TRAILER.size:
        raise DataDamaged(f"{key}: {len(data)} bytes are too few for an object of LedgerMQ", object_key=key)
    length, crc, version, found_kind, magic = TRAILER.unpack_from(data, len(data) - TRAILER.size)
    if magic != MAGIC:
        raise DataDamaged(f"{key}: its end is not that of an object of LedgerMQ", object_key=key)
    if not FORMAT_VERSION <= version <= newest:
        raise FormatNotSupported(
            f"{key}: format version {version}, this software reads version {newest}", object_key=key
        )
    body = data[: len(data) - TRAILER.size]
    if found_kind != kind or length != len(body) or crc32c(body) != crc:
        raise DataDamaged(f"{key}: its checksum, length or kind does not match its content", object_key=key)
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise DataDamaged(f"{key}: {error}", object_key=key) from error
    return message
