#!/usr/bin/env bash
# Takes the testbed down and removes all that it left: processes, mounts, interfaces, iptables rules, files.
#
# Works on whatever is left after any kill, also of a part of itself. Touches nothing unless the marker that up.sh
# writes first is there: up.sh refuses hosts with chains or pods of others, so those found now are the testbed's own.
# shellcheck disable=SC2013,SC2086 # lists of pids and of mount points are meant to be split into words
set -uo pipefail
# shellcheck source=common.sh
. "$(dirname "$0")/common.sh"

# end PROGRAM…: asks all of them to end, then makes them.
end() {
  local deadline=$((SECONDS + 5)) pids
  pids=$(pids_of "$@")
  [ -n "$pids" ] && kill $pids 2>/dev/null
  while pids=$(pids_of "$@") && [ -n "$pids" ]; do
    ((SECONDS >= deadline)) && kill -9 $pids 2>/dev/null
    sleep 0.1
  done
}

# Pods don't end with their kubelet, nor with containerd. The shims go first, as they would report to containerd.
end_pods() {
  local pids deadline=$((SECONDS + 20))
  while pids="$(pids_of containerd-shim-runc-v2) $(pod_processes)" && [ -n "${pids// /}" ]; do
    ((SECONDS >= deadline)) && fail "processes of pods can't be killed: $pids"
    kill -9 $pids 2>/dev/null
    sleep 0.1
  done
}

remove_mounts() {
  local mount
  for _ in 1 2 3; do # a mount may lie on another
    for mount in $(grep -oE " $STATE/[^ ]*" /proc/mounts | sort -ru); do umount -l "$mount" 2>/dev/null; done
  done
}

remove_cgroups() {
  local group node
  for group in $(pod_cgroups); do find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null; done
  for node in "${NODES[@]}"; do
    [ "$(cgroup_of "$node")" = / ] || rmdir /sys/fs/cgroup/{,*/}"$(cgroup_of "$node")" 2>/dev/null
  done
}

remove_interfaces() {
  local link
  [ "$(cat "/sys/class/net/$BRIDGE/ifalias" 2>/dev/null)" = "$BRIDGE_ALIAS" ] || return
  for link in "/sys/class/net/$BRIDGE/brif/"*; do
    [ -e "$link" ] && ip link del "$(basename "$link")" 2>/dev/null
  done
  ip link del "$BRIDGE"
}

# remove_chains iptables|ip6tables: deletes the jumps into our chains, then the chains, in one transaction a table.
# Rules of others in the same tables are never rewritten.
remove_chains() {
  command -v "$1-save" >/dev/null || return
  local table chains
  for table in nat filter mangle; do
    chains=$(foreign_or_own_chains "$1" | sed -n "s/^$table //p")
    [ -z "$chains" ] && continue
    {
      echo "*$table"
      "$1-save" -t $table | grep -E '^-A .* -j (KUBE|CNI)-' | grep -vE '^-A (KUBE|CNI)-' | sed 's/^-A/-D/'
      printf -- '-F %s\n' $chains
      printf -- '-X %s\n' $chains
      echo COMMIT
    } | "$1-restore" --noflush || fail "can't remove the chains of table $table by $1-restore"
  done
}

need_root
take_lock
[ -f "$MARKER" ] || { say "nothing to take down in $STATE"; exit 0; }
end kube coredns
end_pods
end containerd
remove_mounts
remove_cgroups
remove_interfaces
remove_chains iptables
remove_chains ip6tables
# What the CNI plugins remember of each pod. The place is compiled into containerd; the files name our namespaces.
grep -lsF "$STATE/" /var/lib/cni/results/* | xargs -r rm -f
cat "$MARKER" >/proc/sys/net/ipv4/ip_forward
# The marker goes last: a removal that is cut short is then taken up by the next one.
find "$STATE" -mindepth 1 -maxdepth 1 ! -path "$MARKER" -exec rm -rf --one-file-system {} +
rm -rf "$STATE"
