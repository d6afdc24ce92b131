"""Build the guard of a method from what the .proto says: the message `Guard` in the options of the method.

A guard judges what is common to the whole request first (transaction, group, cluster), then the names in a list.
What only brokers send is refused to all others: a request with the field `forwarded` that is set needs no
option for it. The field `created_by` of a request is set to the caller's name.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import Message

from ledgermq.errors import Unauthorized
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.protocol.methods import Method
from ledgermq.protocol.status import error_to_proto
from ledgermq_broker.access.permissions import Permissions, refuse_forwarded
from ledgermq_broker.access.state.rules import Operation
from ledgermq_broker.access.waiting_calls import Call, Guard

_JUDGED = (
    Operation.TRANSACTION,
    Operation.GROUP,
    Operation.PRODUCE,
    Operation.CONSUME,
    Operation.DESCRIBE,
    Operation.CREATE,
    Operation.ALTER,
    Operation.DELETE,
)
"""In this order."""
_COPIED = ("topic", "partition")
"""What the answer to a refused entry takes from the entry, where the answer has such a field."""


def declared_guard(method: Method) -> Guard:
    """Return the guard that the .proto declares for a unary method. A method without the option is for brokers only."""
    declared = method.guard
    if declared == pb.Guard() or declared.brokers:
        return for_brokers
    paths = [(operation, str(getattr(declared, operation.value)).split(".")) for operation in _JUDGED]
    fields = method.descriptor.input_type.fields_by_name
    single = [(operation, path) for operation, path in paths if path != [""] and not fields[path[0]].is_repeated]
    lists = [(operation, path) for operation, path in paths if path != [""] and fields[path[0]].is_repeated]
    assert len(lists) <= 1, f"{method.name}: a guard judges one list"
    assert single or lists or declared.cluster, f"{method.name}: a guard judges something"
    serve: Guard = signed if "created_by" in fields else _serve
    if lists:
        [(operation, (field, name))] = lists
        serve = (
            each_guard(operation, field, declared.answers, getattr(pb, method.descriptor.output_type.name), name)
            if declared.answers
            else _all_guard(operation, field, name)
        )

    async def guard(may: Permissions, request: Any, call: Call) -> Any:
        refuse_forwarded(may, forwarded=getattr(request, "forwarded", False))
        require = may.changes if declared.change else may.require
        for operation, path in single:
            require(operation, _at(request, path))
        if declared.cluster:
            require(Operation.CLUSTER)
        return await serve(may, request, call)

    return guard


async def for_brokers(may: Permissions, request: Any, call: Call) -> Any:
    may.require_broker(f"a {type(request).__name__.removesuffix('Request')} call")
    return await call(request)


def each_guard(operation: Operation, field: str, answers: str, response: type[Message], name: str = "topic") -> Guard:
    """Guard a call that names a topic in each entry of `field` and answers each of them, in order, in
    the field `answers`. The answer to a refused entry is its error.
    """
    kind: Any = response
    refusal = kind.DESCRIPTOR.fields_by_name[answers].message_type._concrete_class
    copied = [each for each in _COPIED if each in refusal.DESCRIPTOR.fields_by_name]

    async def guard(may: Permissions, request: Any, call: Call) -> Any:
        wanted = list(getattr(request, field))
        errors = await may.refusals(operation, (getattr(entry, name) for entry in wanted))
        if not any(errors):
            return await call(request)
        passed = _copy(request)
        allowed = [entry for entry, error in zip(wanted, errors, strict=True) if not error]
        del getattr(passed, field)[:]
        getattr(passed, field).extend(allowed)
        answer = await call(passed) if allowed else kind()
        own = iter(getattr(answer, answers))
        merged = [
            refusal(error=error_to_proto(Unauthorized(error)), **{copy: getattr(entry, copy) for copy in copied})
            if error
            else next(own)
            for entry, error in zip(wanted, errors, strict=True)
        ]
        result = _copy(answer)
        result.ClearField(answers)
        getattr(result, answers).extend(merged)
        return result

    return guard


def _all_guard(operation: Operation, field: str, name: str) -> Guard:
    """Guard a call that one refused entry of `field` refuses as a whole."""

    async def guard(may: Permissions, request: Any, call: Call) -> Any:
        await may.require_each(operation, dict.fromkeys(getattr(entry, name) for entry in getattr(request, field)))
        return await call(request)

    return guard


async def _serve(may: Permissions, request: Any, call: Call) -> Any:
    return await call(request)


async def signed(may: Permissions, request: Any, call: Call) -> Any:
    """Let the request say who made it; a broker that forwards one has said so."""
    if may.principal.is_broker:
        return await call(request)
    passed = _copy(request)
    passed.created_by = may.principal.name
    return await call(passed)


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def _at(request: Any, path: list[str]) -> str:
    found: Any = request
    for field in path:
        found = getattr(found, field)
    return str(found)
