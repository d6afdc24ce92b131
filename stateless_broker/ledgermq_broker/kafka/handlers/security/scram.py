"""Answer DescribeUserScramCredentials and AlterUserScramCredentials by the caller's own calls about SCRAM credentials.

The client draws the salt and sends the salted password; what is kept of it are the two keys of RFC 5802. All changes of
a request are made together, but those of users for whom one is refused.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ledgermq.errors import InvalidRequest, LedgerMQError
from ledgermq.protocol import ledgermq_pb2 as pb
from ledgermq.sources import Sources
from ledgermq_broker.access.state.scram import ScramName, StoredScram, checked_scram
from ledgermq_broker.kafka.handlers.admin.changes import Changes
from ledgermq_broker.kafka.handlers.asked import Asked, Handler
from ledgermq_broker.kafka.handlers.security.acls import TIMEOUT_MS, refusal_of
from ledgermq_broker.kafka.wire.errors import Code
from ledgermq_broker.kafka.wire.generated import alter_user_scram_credentials_response as altered
from ledgermq_broker.kafka.wire.generated import describe_user_scram_credentials_response as described
from ledgermq_broker.kafka.wire.messages import ALTER_USER_SCRAM_CREDENTIALS, DESCRIBE_USER_SCRAM_CREDENTIALS, Api
from ledgermq_broker.kafka.wire.scram import SCRAM

MECHANISMS = dict(enumerate(SCRAM, 1))
"""By Kafka's numbers."""
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_NUMBERS = {name: number for number, name in MECHANISMS.items()}

Refusal = tuple[Code, str]


def answers(sources: Sources) -> Mapping[Api, Handler]:
    """Return the handler of each API."""

    async def alter(asked: Asked) -> Any:
        return await _alter(asked, sources)

    return {DESCRIBE_USER_SCRAM_CREDENTIALS: _describe, ALTER_USER_SCRAM_CREDENTIALS: alter}


async def _describe(asked: Asked) -> described.DescribeUserScramCredentialsResponse:
    answer = described.DescribeUserScramCredentialsResponse(error_message=None)
    try:
        by_user: dict[str, list[pb.ScramInfo]] = {}
        for one in (await asked.api.list_scram(pb.ListScramRequest())).credentials:
            by_user.setdefault(one.name.user, []).append(one)
    except LedgerMQError as error:
        answer.error_code, answer.error_message = refusal_of(error)
        return answer
    times = Counter(user.name for user in asked.message.users or ())
    for user in times or by_user:
        result = described.DescribeUserScramCredentialsResult(user=user, error_message=None)
        if times[user] > 1:
            result.error_code, result.error_message = Code.DUPLICATE_RESOURCE, "this user stands twice in the request"
        elif user not in by_user:
            result.error_code, result.error_message = Code.RESOURCE_NOT_FOUND, "this user has no SCRAM credentials"
        else:
            result.credential_infos = [
                described.CredentialInfo(_NUMBERS[one.name.mechanism], one.iterations) for one in by_user[user]
            ]
        answer.results.append(result)
    return answer


async def _alter(asked: Asked, sources: Sources) -> altered.AlterUserScramCredentialsResponse:
    message = asked.message
    users = dict.fromkeys(one.name for one in (*message.deletions, *message.upsertions))
    try:
        known = {
            (one.name.user, one.name.mechanism)
            for one in (await asked.api.list_scram(pb.ListScramRequest())).credentials
        }
        refused = _refused(message, known)
        request = pb.ChangeScramRequest(
            set=[_to_wire(keys_of(one)) for one in message.upsertions if one.name not in refused],
            unset=[
                pb.ScramName(user=one.name, mechanism=MECHANISMS[one.mechanism])
                for one in message.deletions
                if one.name not in refused
            ],
            nonce=sources.random.getrandbits(128).to_bytes(16, "big"),
        )
        if request.set or request.unset:
            await Changes(TIMEOUT_MS).make(lambda: asked.api.change_scram(request))
    except LedgerMQError as error:
        refused = dict.fromkeys(users, refusal_of(error))
    return altered.AlterUserScramCredentialsResponse(
        results=[altered.AlterUserScramCredentialsResult(user, *refused.get(user, (Code.NONE, None))) for user in users]
    )


def _refused(message: Any, known: set[tuple[str, str]]) -> dict[str, Refusal]:
    """Return why changes of a user are refused, by user. `known`: users and mechanisms that are stored."""
    refused: dict[str, Refusal] = {}
    times = Counter((one.name, one.mechanism) for one in (*message.deletions, *message.upsertions))
    for (user, number), count in times.items():
        if count > 1:
            refused.setdefault(user, (Code.DUPLICATE_RESOURCE, "a credential stands twice in the request"))
        elif number not in MECHANISMS:
            offered = " and ".join(f"{name} ({known_as})" for known_as, name in MECHANISMS.items())
            refused.setdefault(
                user, (Code.UNSUPPORTED_SASL_MECHANISM, f"mechanism {number} is unknown: {offered} are offered")
            )
    for one in message.upsertions:
        try:
            if one.name not in refused:
                keys_of(one)
        except InvalidRequest as error:
            refused[one.name] = Code.UNACCEPTABLE_CREDENTIAL, error.message
    for one in message.deletions:
        if one.name not in refused and (one.name, MECHANISMS[one.mechanism]) not in known:
            refused[one.name] = Code.RESOURCE_NOT_FOUND, f"this user has no {MECHANISMS[one.mechanism]} credential"
    return refused


def keys_of(one: Any) -> StoredScram:
    """Return what is kept of an upsertion. Raises InvalidRequest."""
    mechanism = MECHANISMS[one.mechanism]
    hash_name, salted = HASHES[mechanism], bytes(one.salted_password)
    wanted = hashlib.new(hash_name).digest_size
    if len(salted) != wanted:
        raise InvalidRequest(f"the salted password of {mechanism} has {wanted} bytes, not {len(salted)}")
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    return checked_scram(
        StoredScram(
            ScramName(one.name, mechanism),
            bytes(one.salt),
            one.iterations,
            hashlib.new(hash_name, client_key).digest(),
            hmac.digest(salted, b"Server Key", hash_name),
        )
    )


def _to_wire(stored: StoredScram) -> pb.ScramCredential:
    return pb.ScramCredential(
        name=pb.ScramName(user=stored.name.user, mechanism=stored.name.mechanism),
        salt=stored.salt,
        iterations=stored.iterations,
        stored_key=stored.stored_key,
        server_key=stored.server_key,
    )
