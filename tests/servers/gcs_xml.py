"""Serve what fake-gcs-server lacks of Google Cloud Storage: the XML API with its conditions and error bodies,
checks of tokens and signed URLs, and Google's exchange of a signed JWT for a token.

    python -m tests.servers.gcs_xml http://127.0.0.1:UPSTREAM PORT SERVICE_ACCOUNT_FILE

It keeps nothing. An upload becomes one request of the JSON API, with the same condition on the generation, so
the emulator alone decides which of two uploads wins. Everything that is not the XML API passes unchanged.
By Google's pages "HTTP headers for XML", "HTTP status and error codes for XML" and "V4 signing process".
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import aiohttp
from aiohttp import web
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding
from yarl import URL

BODY_BYTES_MAX = 1 << 30
TOKEN_S = 3600
CONDITION = "x-goog-if-generation-match"
JSON_API = ("/storage/v1/", "/upload/", "/download/", "/batch/", "/_internal/")
HOP = {"host", "connection", "content-length", "transfer-encoding", "date", "server"}


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(code)
        self.status = status
        self.body = (
            f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
        )


class Front:
    def __init__(self, upstream: str, account: dict[str, str]) -> None:
        self._upstream = upstream
        self._email = account["client_email"]
        private: Any = serialization.load_pem_private_key(account["private_key"].encode(), None)
        self._key = private.public_key()
        self._token = secrets.token_hex(16)
        self._http: aiohttp.ClientSession | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self._http is None:
            self._http = aiohttp.ClientSession(auto_decompress=False, connector=aiohttp.TCPConnector(limit=0))
        body = await request.read()
        try:
            if request.path == "/token":
                return web.json_response({"access_token": self._token, "expires_in": TOKEN_S, "token_type": "Bearer"})
            if request.path.startswith("/_internal/"):
                return await self._send(request, request.raw_path, body)
            query = dict(parse_qsl(request.raw_path.partition("?")[2]))
            if "X-Goog-Signature" in query:
                self._check_signature(request, query)
            elif request.headers.get("Authorization") != f"Bearer {self._token}":
                raise Refusal(401, "AuthenticationRequired", "Authentication required.")
            if request.path.startswith(JSON_API):
                return await self._send(request, request.raw_path, body)
            return await self._xml(request, body)
        except Refusal as refused:
            return web.Response(
                status=refused.status,
                text=None if request.method == "HEAD" else refused.body,
                content_type="application/xml",
            )
        except aiohttp.ClientError:  # the emulator is down: so is this line
            assert request.transport is not None
            request.transport.abort()
            return web.Response(status=502)

    async def _xml(self, request: web.Request, body: bytes) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        bucket, _, name = path.removeprefix("/").partition("/")
        if request.method in ("GET", "HEAD"):
            got = await self._send(request, path, body)
            if got.status == 404:
                raise await self._missing(bucket)
            return got
        if request.method != "PUT" or not name:
            raise Refusal(405, "MethodNotAllowed", "The specified method is not allowed against this resource.")
        condition = request.headers.get(CONDITION)
        wanted = "" if condition is None else f"&ifGenerationMatch={condition}"
        target = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(unquote(name), safe='')}{wanted}"
        status, _ = await self._ask("POST", target, body)
        if status == 404:
            raise await self._missing(bucket)
        if status == 412:
            raise Refusal(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")
        if status != 200:
            raise Refusal(500, "InternalError", f"fake-gcs-server answered {status}")
        return web.Response(headers={"ETag": f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'})

    async def _missing(self, bucket: str) -> Refusal:
        status, _ = await self._ask("GET", f"/storage/v1/b/{bucket}", b"")
        if status == 404:
            return Refusal(404, "NoSuchBucket", "The specified bucket does not exist.")
        return Refusal(404, "NoSuchKey", "The specified key does not exist.")

    async def _ask(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        assert self._http is not None
        async with self._http.request(method, URL(self._upstream + target, encoded=True), data=body) as got:
            return got.status, await got.read()

    async def _send(self, request: web.Request, target: str, body: bytes) -> web.Response:
        assert self._http is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP}
        url = URL(self._upstream + target, encoded=True)
        async with self._http.request(request.method, url, data=body, headers=headers) as got:
            passed = [(name, value) for name, value in got.headers.items() if name.lower() not in HOP]
            answer = web.Response(status=got.status, body=await got.read(), headers=passed)
            if request.method == "HEAD" and "Content-Length" in got.headers:
                answer.content_length = int(got.headers["Content-Length"])
            return answer

    def _check_signature(self, request: web.Request, query: dict[str, str]) -> None:
        """Raise Refusal unless this process's service account signed exactly this request, and its time is not over."""
        signed_names = query["X-Goog-SignedHeaders"].split(";")
        missing = [name for name in signed_names if name not in request.headers]
        if missing:
            raise Refusal(
                400, "MalformedSecurityHeader", f"Header was included in signedheaders, but not sent: {missing}"
            )
        unsigned = {name.lower() for name in request.headers if name.lower().startswith("x-goog-")} - set(signed_names)
        if unsigned:
            raise Refusal(400, "MalformedSecurityHeader", f"x-goog- headers have to be signed: {sorted(unsigned)}")
        canonical_query = "&".join(
            sorted(
                f"{quote(name, safe='~')}={quote(value, safe='~')}"
                for name, value in query.items()
                if name != "X-Goog-Signature"
            )
        )
        headers = "".join(f"{name}:{request.headers[name].strip()}\n" for name in signed_names)
        path = request.raw_path.partition("?")[0]
        canonical = "\n".join(
            (request.method, path, canonical_query, headers, ";".join(signed_names), "UNSIGNED-PAYLOAD")
        )
        email, _, scope = query["X-Goog-Credential"].partition("/")
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        signed = "\n".join(("GOOG4-RSA-SHA256", query["X-Goog-Date"], scope, digest))
        try:
            if email != self._email:
                raise InvalidSignature
            self._key.verify(
                bytes.fromhex(query["X-Goog-Signature"]), signed.encode(), padding.PKCS1v15(), hashes.SHA256()
            )
        except InvalidSignature:
            raise Refusal(
                403,
                "SignatureDoesNotMatch",
                "The request signature we calculated does not match the signature you provided.",
            ) from None
        begun = datetime.strptime(query["X-Goog-Date"], "%Y%m%dT%H%M%S%z")
        if datetime.now(UTC) > begun + timedelta(seconds=int(query["X-Goog-Expires"])):
            raise Refusal(400, "ExpiredToken", "The provided token has expired.")


def main() -> None:
    upstream, port, file = sys.argv[1:]
    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app.router.add_route("*", "/{tail:.*}", Front(upstream, json.loads(Path(file).read_text())).answer)
    web.run_app(app, host="127.0.0.1", port=int(port), print=lambda _: None, access_log=None)


if __name__ == "__main__":
    main()
