#!/usr/bin/env bash
# Write requirements.lock: every package of every extra that `make` needs, pinned, with hashes. What is locked stays, unless --upgrade.
# No index, local wheel folder or path of this machine may land in the file.
set -euo pipefail
cd "$(dirname "$0")/.."
env -u PIP_FIND_LINKS -u PIP_INDEX_URL -u PIP_EXTRA_INDEX_URL .venv/bin/pip-compile --quiet --extra dev --generate-hashes --allow-unsafe \
  --strip-extras --no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --annotation-style=line \
  --output-file requirements.lock "$@" pyproject.toml
# The extras name the project itself, which pip-compile then writes down as a local path.
sed -i -e '/^ledgermq @/d' -e '/^# WARNING/d' -e '/^# Consider using a hashable/d' -e '/^# The following packages are/d' requirements.lock
if grep -nE 'file:/|--(find-links|index-url|extra-index-url)|://' requirements.lock; then
  echo "requirements.lock names a host or a path" >&2
  exit 1
fi
.venv/bin/python -m infra.image_locks
{
  echo '# Made by `make lock`.'
  .venv/bin/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' |
    .venv/bin/uv pip compile --quiet --generate-hashes --python-version 3.11 --no-header --no-annotate --no-emit-index-url -
} >infra/compose/build.lock
