#!/usr/bin/env bash
# Create or update the virtualenv named by $1 from requirements.lock, and install the project into it, editable.
# Safe to run again. pip only; a download that fails is tried three times.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=${1:-.venv}

find_python() {
  for name in python3.13 python3.12 python3.11 python3; do
    if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$name"
      return
    fi
  done
  echo "LedgerMQ needs Python 3.11 or newer, and found none on PATH." >&2
  exit 1
}

retry() {
  local attempt
  for attempt in 1 2 3; do
    "$@" && return
    echo "attempt $attempt of 3 failed: $1 ${2:-} ${3:-}" >&2
    sleep $((attempt * 3))
  done
  return 1
}

if ! "$environment/bin/python" -m pip --version >/dev/null 2>&1; then
  python=$(find_python)
  "$python" -m venv --clear "$environment" || {
    echo "Cannot make a virtual environment with $python; on Debian: apt-get install python3-venv" >&2
    exit 1
  }
fi
echo "Installing the locked dependencies into $environment/ (the first time takes a few minutes) …"
pip=("$environment/bin/python" -m pip --disable-pip-version-check --quiet)
retry "${pip[@]}" install --require-hashes -r requirements.lock
retry "${pip[@]}" install --no-deps --editable .
