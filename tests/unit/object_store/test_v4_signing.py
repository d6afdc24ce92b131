"""URLs signed for Google are those that Google's own library makes, byte for byte."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from google.cloud.storage._signing import generate_signed_url_v4  # type: ignore[import-untyped]
from google.oauth2.service_account import Credentials

from infra.fake_gcs import EMAIL, write_service_account
from ledgermq_ledger.object_store.clouds.v4_signing import TIME_FORMAT, Signer, signed_url

NOW = datetime(2026, 11, 30, 23, 59, 59, tzinfo=UTC)
CREATES = {"x-goog-if-generation-match": "0"}


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    file = tmp_path_factory.mktemp("account") / "account.json"
    write_service_account(file, "https://oauth2.googleapis.com/token")
    account: dict[str, str] = json.loads(file.read_text())
    found: Credentials = Credentials.from_service_account_info(account)  # type: ignore[no-untyped-call]
    return found


@pytest.mark.parametrize("headers", [CREATES, {}])
@pytest.mark.parametrize("method", ["PUT", "GET"])
@pytest.mark.parametrize("endpoint", ["https://storage.googleapis.com", "http://127.0.0.1:4443"])
@pytest.mark.parametrize("name", ["a", "root/parquet/topic=t/partition=0/0001.parquet", "a b/~x-._/ü?&+%"])
def test_a_signed_url_is_what_googles_library_makes(
    credentials: Credentials, headers: dict[str, str], method: str, endpoint: str, name: str
) -> None:
    theirs = generate_signed_url_v4(
        credentials,
        f"/bucket/{quote(name, safe='/~')}",
        900,
        api_access_endpoint=endpoint,
        method=method,
        headers=dict(headers),
        _request_timestamp=NOW.strftime(TIME_FORMAT),
    )
    signer = Signer(EMAIL, credentials.sign_bytes)
    assert signed_url(signer, method, endpoint, f"/bucket/{name}", headers, 900, NOW) == theirs
