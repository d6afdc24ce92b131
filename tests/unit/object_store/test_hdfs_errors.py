"""The errors of an HDFS, told by its client, as the contract's: by class, else by the Java class in
their text.
"""

from __future__ import annotations

import pytest

from ledgermq.errors import InvalidRequest, LedgerMQError, StoreFull, StoreUnusable, Unauthorized
from ledgermq_ledger.object_store.contract import AlreadyExists, ObjectMissing, StoreThrottled, StoreUncertain
from ledgermq_ledger.object_store.hdfs.errors import TEXT_CHARS_MAX, hdfs_error, hdfs_errors

HADOOP = "org.apache.hadoop"


def remote(java_class: str, text: str = "why") -> RuntimeError:
    return RuntimeError(f'RPCError("{java_class}", "{text}\\n\\tat {HADOOP}.somewhere.deep(Deep.java:1)")')


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileExistsError("rename destination /a exists"), AlreadyExists),
        (FileNotFoundError("/a"), ObjectMissing),
        (remote(f"{HADOOP}.security.AccessControlException", "/a/b (is not a directory)"), ObjectMissing),
        (remote(f"{HADOOP}.security.AccessControlException", "Permission denied: user=x"), Unauthorized),
        (remote(f"{HADOOP}.ipc.RetriableException"), StoreThrottled),
        (remote(f"{HADOOP}.hdfs.server.namenode.SafeModeException", "Name node is in safe mode."), StoreThrottled),
        (remote(f"{HADOOP}.ipc.StandbyException"), StoreThrottled),
        (remote(f"{HADOOP}.hdfs.protocol.DSQuotaExceededException"), StoreFull),
        (remote("java.io.IOException", "Source /a and destination /b must both be directories"), InvalidRequest),
        (remote(f"{HADOOP}.hdfs.protocol.FSLimitException$PathComponentTooLongException"), InvalidRequest),
        (
            remote("java.io.IOException", "File /a could only be written to 0 of the 1 minReplication nodes."),
            StoreUncertain,
        ),
        (ConnectionRefusedError(111, "Connection refused"), StoreUncertain),
        (RuntimeError(""), StoreUncertain),
    ],
)
def test_every_kind(error: Exception, kind: type[LedgerMQError]) -> None:
    found = hdfs_error("a/b", error)
    assert type(found) is kind
    assert found.object_key == "a/b" or kind is InvalidRequest
    assert "Deep.java" not in found.message
    assert len(found.message) < TEXT_CHARS_MAX + 100


def test_what_the_rust_half_dies_of_is_uncertain_and_an_interrupt_is_none_of_it() -> None:
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(StoreUncertain, match="Cannot read past end"), hdfs_errors("a"):
        raise panic("Cannot read past end of the file")
    with pytest.raises(KeyboardInterrupt), hdfs_errors("a"):
        raise KeyboardInterrupt
    with pytest.raises(StoreUnusable), hdfs_errors("a"):
        raise StoreUnusable("ours")
