#!/usr/bin/env bash
# logs.sh [LINES]: the end of each component's log (15 lines), and which of them no longer run. For a look after a failure.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "$0")/common.sh"

[ -f "$MARKER" ] || fail "not running; run $HERE/up.sh first"
running=$(for pid in $(pids_of kube coredns containerd); do tr '\0' ' ' <"/proc/$pid/cmdline"; echo; done)

# runs COMPONENT: containerd and kubelets are named with their node, as their logs are.
runs() {
  local node=${1#*-}
  case $1 in
    containerd-*) grep -qF "$STATE/$node/containerd.toml" <<<"$running" ;;
    kubelet-*) grep -qF -- "--hostname-override=$node " <<<"$running" ;;
    coredns) grep -qF "$CACHE/coredns " <<<"$running" ;;
    *) grep -qF "$CACHE/kube $1 " <<<"$running" ;;
  esac
}

for log in "$LOG"/*.log; do
  component=$(basename "$log" .log)
  note=
  runs "$component" || note=": NOT RUNNING"
  echo "--- $component$note"
  tail -n "${1:-15}" "$log" | cut -c -400
done
