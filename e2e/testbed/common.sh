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
SOCKET=$RUN/containerd.sock
KUBECONFIG_FILE=$STATE/kubeconfig

NODE=testbed
BRIDGE=sluice0
BRIDGE_ALIAS=sluice-testbed
NETWORK=sluice-testbed
# The node's address, on the bridge that the pods hang on. Servers of a test (a broker, an S3 server) listen here.
NODE_IP=10.244.0.1
POD_CIDR=10.244.0.0/16
SERVICE_CIDR=10.96.0.0/16
API_SERVICE_IP=10.96.0.1
DNS_SERVICE_IP=10.96.0.10
DNS_PORT=10053
API_SERVER=https://$NODE_IP:6443

fail() { echo "testbed: $*" >&2; exit 1; }
say() { echo "testbed: $*" >&2; }

need_root() { [ "$(id -u)" = 0 ] || fail "must run as root: it makes a bridge, mounts and iptables rules"; }

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

# The pid of one component; all but containerd and coredns run as `kube COMPONENT …`.
pid_of() {
  local program=kube pid
  case $1 in containerd | coredns) program=$1 ;; esac
  for pid in $(pids_of "$program"); do
    if [ "$program" = "$1" ] || tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q "/kube $1 "; then
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

# Processes in the top-level cgroup of a kubelet (cgroup v2 has one tree, v1 one for each controller).
pod_processes() {
  local group
  for group in /sys/fs/cgroup/kubepods /sys/fs/cgroup/*/kubepods; do
    # A group may go away while we look.
    if [ -d "$group" ]; then find "$group" -name cgroup.procs -exec cat {} + 2>/dev/null || true; fi
  done | sort -un
}
