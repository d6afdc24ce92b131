#!/bin/sh
# pip of the image's environment; trusts the certificates in /certificates, too.
set -eu
if ls /certificates/*.pem >/dev/null 2>&1; then
  cat /etc/ssl/certs/ca-certificates.crt /certificates/*.pem >/tmp/trusted.pem
  export PIP_CERT=/tmp/trusted.pem
fi
exec /opt/packages/bin/pip --no-cache-dir --disable-pip-version-check --quiet "$@"
