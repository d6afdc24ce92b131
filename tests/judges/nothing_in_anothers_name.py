"""Nothing in another's name: what a principal sends with names and identities of others does not count, is refused
for a reason that the error states, and shows nothing that only they may know.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tests.judges.violation import Violation


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call of one principal with what belongs to another. `what`: words for it.

    `counted`: what of it the answer says was done. `codes`: of the errors in the answer, or that ended the call; "":
    an error without a code of the product. `answer`: its bytes.
    """

    what: str
    counted: Collection[str] = ()
    codes: Collection[str] = ()
    answer: bytes = b""


def judge_attempt(attempt: Attempt, refusals: Collection[str], secrets: Collection[bytes]) -> Iterator[Violation]:
    """`refusals`: codes of errors with which such a call may end. `secrets`: what the caller did not send itself.

    counted in another's name    the answer says that something was done
    refused for no reason        an error without a code, or with one that is no refusal
    secret shown                 the answer has an identity of another principal
    """
    if attempt.counted:
        yield Violation("counted in another's name", f"{attempt.what}: {', '.join(sorted(attempt.counted))}")
    odd = sorted({code or "an unknown error" for code in attempt.codes if code not in refusals})
    if odd:
        yield Violation("refused for no reason", f"{attempt.what}: {', '.join(odd)}")
    for secret in secrets:
        if secret in attempt.answer:
            yield Violation("secret shown", f"{attempt.what}: {secret!r}")
