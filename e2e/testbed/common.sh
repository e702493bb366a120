# What the testbed's scripts share: its names, where its things lie, and what belongs to it.
#
# Everything that the testbed makes can be told from what others made: its files lie in one directory that holds a
# marker, its bridge carries an alias, its processes name that directory on their command line, and it does not start
# where another Kubernetes or CNI network has put its rules. So taking it down can never hit a stranger.
# shellcheck shell=bash disable=SC2034

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
STATE=${SLUICE_TESTBED:-/var/lib/sluice-testbed}
CACHE=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/testbed
MARKER=$STATE/.sluice-testbed
RUN=$STATE/run
LOG=$STATE/log
PKI=$STATE/pki
KUBECONFIG_FILE=$STATE/kubeconfig

# Two nodes on one machine: each has a containerd, a kubelet, a tree of cgroups, an address and a share of the pods'
# addresses of its own; the bridge and the iptables rules are common. The control plane runs beside the first.
NODES=(testbed testbed-2)
BRIDGE=sluice0
BRIDGE_ALIAS=sluice-testbed
NETWORK=sluice-testbed
# The first node's address, on the bridge that the pods hang on. Servers of a test (a broker, an S3 server) listen here.
NODE_IP=10.244.0.1
SECOND_NODE_IP=10.244.0.254
POD_CIDR=10.244.0.0/16
SERVICE_CIDR=10.96.0.0/16
API_SERVICE_IP=10.96.0.1
DNS_SERVICE_IP=10.96.0.10
DNS_PORT=10053
PROXY_HEALTH_PORT=10256
API_SERVER=https://$NODE_IP:6443

fail() { echo "testbed: $*" >&2; exit 1; }
say() { echo "testbed: $*" >&2; }

need_root() { [ "$(id -u)" = 0 ] || fail "must run as root: it makes a bridge, mounts and iptables rules"; }

# What is a node's own.
socket_of() { echo "$RUN/$1.sock"; }
ip_of() { case $1 in testbed) echo $NODE_IP ;; *) echo $SECOND_NODE_IP ;; esac; }
cgroup_of() { case $1 in testbed) echo / ;; *) echo "/sluice-$1" ;; esac; }

# Only one up or down at a time: both take the lock as file descriptor 9, and no daemon inherits it.
take_lock() {
  exec 9>"/run/lock/sluice-testbed"
  flock -w 300 9 || fail "another up.sh or down.sh has held /run/lock/sluice-testbed for 5 minutes; end it first"
}

# The pids of running programs NAME… whose command line names our directory. Pid files would lie after a reboot.
pids_of() {
  local name pid
  for name in "$@"; do
    for pid in $(pgrep -x "${name:0:15}"); do
      if grep -qzF "$STATE/" "/proc/$pid/cmdline" 2>/dev/null; then echo "$pid"; fi # a zombie's is empty
    done
  done
}

# The pid of the process with exactly this command line.
pid_of() {
  local pid
  for pid in $(pids_of "$(basename "$1")"); do
    if [ "$(tr '\0' ' ' <"/proc/$pid/cmdline")" = "$* " ]; then
      echo "$pid"
      return
    fi
  done
}

# Chains of Kubernetes and of CNI plugins, as TABLE CHAIN lines, for iptables or ip6tables.
foreign_or_own_chains() {
  local table
  for table in nat filter mangle; do
    "$1-save" -t $table 2>/dev/null | sed -nE "s/^:((KUBE|CNI)-[^ ]+).*/$table \1/p"
  done
}

# The top-level cgroups of kubelets (cgroup v2 has one tree, v1 one for each controller).
pod_cgroups() { find /sys/fs/cgroup -maxdepth 3 -type d -name kubepods 2>/dev/null; }

# Processes in them.
pod_processes() {
  local group
  for group in $(pod_cgroups); do
    # A group may go away while we look.
    find "$group" -name cgroup.procs -exec cat {} + 2>/dev/null || true
  done | sort -un
}
