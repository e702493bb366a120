#!/usr/bin/env bash
# import.sh IMAGE.tar…: gives images (as `docker save` or `cargo xtask image` write them) to the testbed's nodes.
# Pods must say imagePullPolicy Never or IfNotPresent: no registry is asked.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "$0")/common.sh"

[ $# -gt 0 ] || fail "usage: import.sh IMAGE.tar…"
for node in "${NODES[@]}"; do
  socket=$(socket_of "$node")
  [ -S "$socket" ] || fail "not running (no $socket); run $HERE/up.sh first"
  for archive in "$@"; do
    ctr -a "$socket" -n k8s.io images import "$archive"
  done
done
