#!/usr/bin/env bash
# kubelet.sh stop|start NODE: a node is lost to the cluster, its pods running on, and comes back.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "$0")/common.sh"

[ $# = 2 ] || fail "usage: kubelet.sh stop|start NODE"
need_root
[ -f "$MARKER" ] || fail "not running; run $HERE/up.sh first"
case $1 in
  stop)
    for pid in $(pids_of kube); do
      if tr '\0' '\n' <"/proc/$pid/cmdline" | grep -qxF -- "--hostname-override=$2"; then kill -9 "$pid"; fi
    done
    ;;
  start) exec "$HERE/up.sh" ;;
  *) fail "usage: kubelet.sh stop|start NODE" ;;
esac
