#!/bin/bash
# Make a user in MinIO for the brokers, the compaction service and readers, each with its policies (docs/security.md).
# It may run again: then keys and policies are replaced. It needs bash, coreutils and mc: MinIO's image has little else.
# Secrets go through stdin, so that no command line of this machine shows them.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export MC_CONFIG_DIR=$work/mc
policies=${POLICIES:-/opt/ledgermq/policies}
store_timeout_s=60

root=${LEDGERMQ_ROOT#s3://}
options=${root#*\?}
root=${root%%\?*}
bucket=${root%%/*}
prefix=${root#"$bucket"}
prefix=${prefix#/}
prefix=${prefix%/}
endpoint=http://minio:9000
[[ $options =~ (^|&)endpoint=([^&]+) ]] && endpoint=${BASH_REMATCH[2]}

while ! said=$(printf '%s\n%s\n' "$MINIO_ROOT_USER" "$MINIO_ROOT_PASSWORD" | mc alias set store "$endpoint" 2>&1); do
  if ((SECONDS > store_timeout_s)); then
    echo "the users of $endpoint cannot be made: $said" >&2
    exit 1
  fi
  sleep 1
done

make_policy() { # NAME
  local text
  text=$(<"$policies/$1.json")
  text=${text//BUCKET/$bucket}
  if [[ -n $prefix ]]; then text=${text//PREFIX/$prefix}; else text=${text//PREFIX\//}; fi
  printf '%s\n' "$text" >"$work/$1.json"
  mc admin policy create store "ledgermq-$1" "$work/$1.json" >/dev/null
}

make_user() { # ACCESS_KEY SECRET_KEY POLICY…
  local user=$1 secret=$2 policy
  shift 2
  printf '%s\n%s\n' "$user" "$secret" | mc admin user add store >/dev/null
  for policy in "$@"; do
    if ! said=$(mc admin policy attach store "ledgermq-$policy" --user "$user" 2>&1) && [[ $said != *"already in effect"* ]]; then
      echo "user $user cannot be given the policy ledgermq-$policy: $said" >&2
      exit 1
    fi
  done
  echo "user $user: $*"
}

for policy in broker compactor reader s3a; do make_policy "$policy"; done
make_user "$BROKER_ACCESS_KEY" "$BROKER_SECRET_KEY" broker
make_user "$COMPACTOR_ACCESS_KEY" "$COMPACTOR_SECRET_KEY" compactor
make_user "$READER_ACCESS_KEY" "$READER_SECRET_KEY" reader s3a
