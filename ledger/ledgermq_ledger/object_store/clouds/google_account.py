"""`GoogleAccount`: the credentials of google-auth's own chain, renewed in time, and who signs with them.

The chain: GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth application-default login`, a workload's or machine's
service account.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import google.auth
from google.auth import iam
from google.auth.credentials import Signing as PrivateKey
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, RefreshError
from google.auth.transport.requests import Request

from ledgermq.errors import Unauthorized
from ledgermq_ledger.object_store.clouds.v4_signing import Signer
from ledgermq_ledger.object_store.s3 import wire as s3_wire
from ledgermq_ledger.object_store.s3.wire import S3Silent

SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write", "https://www.googleapis.com/auth/iam")
WHOSE = "Google credentials"
NO_CREDENTIALS = (
    "there are no Google credentials: set GOOGLE_APPLICATION_CREDENTIALS to a service account's file, run "
    "`gcloud auth application-default login`, or give this machine or workload a service account"
)
NO_SIGNER = (
    "these Google credentials cannot sign URLs, which compaction needs: use a service account's, or impersonate one "
    "(`gcloud auth application-default login --impersonate-service-account=…`)"
)


class GoogleAccount:
    def __init__(self) -> None:
        """Find the credentials; may ask a metadata server. Raises Unauthorized (none)."""
        try:
            self._credentials: Any = google.auth.default(scopes=SCOPES)[0]
        except (DefaultCredentialsError, ValueError) as error:
            raise Unauthorized(f"{NO_CREDENTIALS} ({error})", object_key=WHOSE) from error
        self._request: Any = partial(Request(), timeout=s3_wire.SILENCE_S_MAX)
        self._lock = threading.Lock()

    def token(self) -> str:
        """Return a token, a new one where it is time. Raises Unauthorized, S3Silent."""
        with self._lock:
            if not self._credentials.valid:
                with google_errors():
                    self._credentials.refresh(self._request)
            return str(self._credentials.token)

    def for_obstore(self) -> dict[str, Any]:
        """Return a token for obstore, which calls this in its threads."""
        token = self.token()
        ends: datetime | None = self._credentials.expiry  # UTC without a zone
        return {"token": token, "expires_at": ends and ends.replace(tzinfo=UTC)}

    @property
    def has_private_key(self) -> bool:
        """Whether signing sends no request."""
        return isinstance(self._credentials, PrivateKey)

    def signer(self) -> Signer:
        """Return who signs: the private key, else IAM, by a request for each signature. Raises Unauthorized (no
        service account), S3Silent.
        """
        if self.has_private_key:
            return Signer(self._credentials.signer_email, self._credentials.sign_bytes)
        self.token()  # a machine's account learns its name by this
        email = getattr(self._credentials, "service_account_email", None)
        if not email:
            raise Unauthorized(NO_SIGNER, object_key=WHOSE)
        by_iam: Any = iam.Signer  # has no types
        return Signer(email, by_iam(self._request, self._credentials, email).sign)


@contextmanager
def google_errors() -> Iterator[None]:
    """Raise google-auth's exceptions as the wire's."""
    try:
        yield
    except RefreshError as error:
        if error.retryable:
            raise S3Silent("Google credentials are not available at present") from error
        raise Unauthorized(f"Google refuses these credentials ({error})", object_key=WHOSE) from error
    except GoogleAuthError as error:
        if "signBytes API" in str(error) and ("403" in str(error) or "PERMISSION_DENIED" in str(error)):
            raise Unauthorized(
                "this service account may not sign: give it the role Service Account Token Creator on itself",
                object_key=WHOSE,
            ) from error
        raise S3Silent(f"Google credentials: {type(error).__name__}") from error
