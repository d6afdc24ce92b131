"""Map the errors of hdfs-native, and of the NameNode behind it, to those of the contract.

The only place that does so; knows no store.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ledgermq.errors import InvalidRequest, LedgerMQError, StoreFull, Unauthorized
from ledgermq_ledger.object_store.contract import AlreadyExists, ObjectMissing, StoreThrottled, StoreUncertain

TEXT_CHARS_MAX = 300
_MISSING = (
    "FileNotFoundException",
    "PathIsNotDirectoryException",
    "ParentNotDirectoryException",
    "LeaseExpiredException",
)
_IN_THE_WAY = "(is not a directory)"
"""HDFS reports this as a refusal of access if a file is in the place of a folder of the path."""
_REFUSED = ("AccessControlException", "AuthenticationException", "InvalidToken", "SaslException", "AccessDenied")
_FULL = ("QuotaExceededException", "DSQuotaExceededException", "NSQuotaExceededException", "DiskOutOfSpaceException")
_BUSY = ("SafeModeException", "RetriableException", "StandbyException", "ServerTooBusy")


@contextmanager
def hdfs_errors(what: str) -> Iterator[None]:
    """Raise errors as those of the contract; an unexpected one as StoreUncertain."""
    try:
        yield
    except LedgerMQError:
        raise
    except BaseException as error:
        # a panic of the client's Rust code
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise hdfs_error(what, error) from error


def hdfs_error(what: str, error: BaseException) -> LedgerMQError:
    """Map an error by the class that the client gives it, or by the Java class that its text begins
    with.
    """
    text = str(error).partition("\n")[0].partition("\\n")[0][:TEXT_CHARS_MAX]
    if isinstance(error, FileExistsError):
        return AlreadyExists(f"object {what} exists", object_key=what)
    if (
        isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
        or _names(text, _MISSING)
        or _IN_THE_WAY in text
    ):
        return ObjectMissing(f"no object {what}", object_key=what)
    if isinstance(error, PermissionError) or _names(text, _REFUSED):
        return Unauthorized(f"HDFS refuses access to {what}: {text}", object_key=what)
    if _names(text, _FULL):
        return StoreFull(f"no space is left in HDFS, or a quota is used up ({what}): {text}", object_key=what)
    if _names(text, _BUSY):
        return StoreThrottled(f"{what}: {text}", object_key=what, retry_after_ms=1000)
    if "must both be directories" in text:
        return InvalidRequest(f"{what} cannot be an object: it is a folder that holds other objects")
    if "PathComponentTooLongException" in text or "FSLimitException" in text:
        return InvalidRequest(f"{what}: the name is too long for this HDFS: {text}")
    return StoreUncertain(f"{what}: {text or type(error).__name__}", object_key=what)


def _names(text: str, classes: tuple[str, ...]) -> bool:
    return any(name in text for name in classes)
