"""Exit codes of the command line, and the one place that maps errors to them.

  0  done
  1  an error without a code below; a bug, if it says INTERNAL
  2  wrong usage: an option, an argument, a setting, a topic name, an input record
  3  unavailable: no broker or store answered in time, or a limit was reached; try again; `status`:
     the cluster is not healthy
  4  not found: topic, partition, offset, group, transaction, cluster, object
  5  already exists
  6  damaged, or written by another version, or the store is unusable; `ledgermq inspect` and `fsck`
     return 6 for findings
  7  refused: credentials, TLS, or the topic, the group or the transaction does not accept the request
  8  unknown outcome: some records may or may not be stored
  9  untidy: `ledgermq fsck` found no damage, but left-over objects
130  interrupted (Ctrl-C)
143  terminated (SIGTERM): the command has committed, flushed and left its group first
"""

from __future__ import annotations

from enum import IntEnum

from ledgermq import errors


class ExitCode(IntEnum):
    OK = 0
    ERROR = 1
    USAGE = 2
    UNAVAILABLE = 3
    NOT_FOUND = 4
    EXISTS = 5
    DAMAGED = 6
    REFUSED = 7
    UNKNOWN_OUTCOME = 8
    UNTIDY = 9
    INTERRUPTED = 130
    TERMINATED = 143


EPILOG = (
    "Exit codes: 0 done, 1 error, 2 usage, 3 unavailable (try again), 4 not found, 5 already exists, "
    "6 damaged or unusable store, 7 refused, 8 unknown outcome, 9 left-overs found, 130 interrupted, 143 terminated."
)

_BY_CODE: dict[str, ExitCode] = {
    "UNKNOWN_TOPIC": ExitCode.NOT_FOUND,
    "UNKNOWN_CUT": ExitCode.NOT_FOUND,
    "UNKNOWN_PARTITION": ExitCode.NOT_FOUND,
    "OFFSET_OUT_OF_RANGE": ExitCode.NOT_FOUND,
    "OBJECT_MISSING": ExitCode.NOT_FOUND,
    "UNKNOWN_GROUP": ExitCode.NOT_FOUND,
    "UNKNOWN_SCHEMA": ExitCode.NOT_FOUND,
    "GROUP_NOT_EMPTY": ExitCode.REFUSED,
    "COMMIT_GOES_BACK": ExitCode.REFUSED,
    "TOPIC_EXISTS": ExitCode.EXISTS,
    "PUBLISH_NOT_ACCEPTED": ExitCode.REFUSED,
    "SUBSCRIBE_NOT_ACCEPTED": ExitCode.REFUSED,
    "BACKLOG_QUOTA_EXCEEDED": ExitCode.REFUSED,
    "LEGAL_HOLD": ExitCode.REFUSED,
    "PARTITION_BUSY": ExitCode.REFUSED,
    "PARTITION_HELD": ExitCode.REFUSED,
    "PRODUCER_FENCED": ExitCode.REFUSED,
    "PRODUCER_EPOCH_FENCED": ExitCode.REFUSED,
    "CONDITION_FAILED": ExitCode.REFUSED,
    "UNAUTHENTICATED": ExitCode.REFUSED,
    "UNAUTHORIZED": ExitCode.REFUSED,
    "TLS_FAILED": ExitCode.REFUSED,
    "OUTCOME_UNKNOWN": ExitCode.UNKNOWN_OUTCOME,
    "SEARCH_STOPPED": ExitCode.UNAVAILABLE,
    "TRANSACTION_UNKNOWN": ExitCode.NOT_FOUND,
    "TRANSACTION_OUTCOME_UNKNOWN": ExitCode.UNKNOWN_OUTCOME,
}
_BY_BRANCH: tuple[tuple[type[errors.LedgerMQError], ExitCode], ...] = (
    (errors.InvalidRequest, ExitCode.USAGE),
    (errors.RetriableError, ExitCode.UNAVAILABLE),
    (errors.GroupError, ExitCode.REFUSED),
    (errors.TransactionError, ExitCode.REFUSED),
    (errors.StoreError, ExitCode.DAMAGED),
)

_HINTS: dict[str, str] = {
    "BACKLOG_QUOTA_EXCEEDED": "`ledgermq group list` shows which groups are behind; delete those that no program uses",
    "UNKNOWN_TOPIC": "`ledgermq topic list` lists the topics, `ledgermq topic create NAME` creates one",
    "UNKNOWN_GROUP": "`ledgermq group list` lists the groups",
    "UNKNOWN_SCHEMA": "`ledgermq schema list` lists the subjects and their versions",
    "INCOMPATIBLE_SCHEMA": "`ledgermq schema check` says the same without changing anything",
    "GROUP_NOT_EMPTY": "stop its members first; `ledgermq group describe NAME` shows them",
    "COMMIT_GOES_BACK": "to move committed offsets back, use `ledgermq group reset`",
    "UNKNOWN_PARTITION": "`ledgermq topic describe NAME` shows the partitions",
    "TOPIC_EXISTS": "`ledgermq topic describe NAME` shows the settings, `ledgermq topic alter` changes them",
    "PARTITION_HELD": "`ledgermq topic holders NAME` shows which exclusive producers have the topic",
    "LEGAL_HOLD": "`ledgermq topic alter NAME --unset legal.hold` ends the hold",
    "OFFSET_OUT_OF_RANGE": "`--from earliest` begins at the first record that still exists",
    "MESSAGE_TOO_LARGE": "raise the topic's max.message.bytes, or send less in one record",
    "UNAVAILABLE": "is a broker running? `ledgermq dev` starts one; give its address with --target or LEDGERMQ_TARGET",
    "DEADLINE_EXCEEDED": "try again, or raise --timeout",
    "RESOURCE_EXHAUSTED": "try again in a moment, or send more slowly",
    "STORE_FULL": (
        "make room: `ledgermq topic delete` and `ledgermq gc` work on a full store; see 'A full disk' in operations.md"
    ),
    "TOPIC_BEING_DELETED": "try again in a moment",
    "UNAUTHENTICATED": (
        "`ledgermq token create` makes a token; give it by --token-file, LEDGERMQ_TOKEN_FILE or LEDGERMQ_TOKEN"
    ),
    "UNAUTHORIZED": "`ledgermq acl test OPERATION NAME` shows what you may do, `ledgermq acl grant` allows more",
    "TLS_FAILED": "docs/security.md shows how to set TLS up on brokers and clients",
    "DATA_DAMAGED": "`ledgermq inspect cluster ROOT` checks every object",
    "FORMAT_NOT_SUPPORTED": "install the version of ledgermq that wrote this root",
    "STORE_UNUSABLE": "check that the root exists, is writable, and supports create-if-absent",
    "OUTCOME_UNKNOWN": "check the end of the topic before you send these records again",
    "TRANSACTION_UNKNOWN": "`ledgermq transaction list --all` lists the ids that are known",
    "TRANSACTION_ID_REUSED": "give other records another transactional id",
    "OBJECT_MISSING": "check that this root is the one in the brokers' settings",
}

_STORE_REFUSES = "check the credentials of the store, and this machine's clock"


def exit_code(error: BaseException) -> ExitCode:
    if isinstance(error, errors.LedgerMQError):
        if error.code in _BY_CODE:
            return _BY_CODE[error.code]
        return next((code for branch, code in _BY_BRANCH if isinstance(error, branch)), ExitCode.ERROR)
    if isinstance(error, TimeoutError):
        return ExitCode.UNAVAILABLE
    return ExitCode.ERROR


def hint(error: BaseException) -> str | None:
    """Return a one-line remedy for an error, or None if there is none, or its text names a command itself."""
    if isinstance(error, errors.LedgerMQError) and "`ledgermq " not in error.message:
        if isinstance(error, errors.Unauthorized) and error.object_key:
            return _STORE_REFUSES
        return _HINTS.get(error.code)
    return None
