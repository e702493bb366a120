#!/usr/bin/env bash
# Brings up a real Kubernetes of two nodes without Docker, or returns at once when it is up. Prints its KUBECONFIG.
#
# Everything may have been killed before, in any order: each step looks at what is there and makes only what is
# missing. Where it can't be sure that something is its own, it stops and says so.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "$0")/common.sh"

install_packages() {
  command -v containerd runc iptables ip conntrack ethtool socat >/dev/null && [ -x /usr/lib/cni/bridge ] && return
  command -v apt-get >/dev/null || fail "needs containerd, runc, the CNI plugins in /usr/lib/cni, iptables, ip, conntrack, ethtool and socat"
  say "installing Debian packages"
  apt-get update -qq
  # Services that start by themselves would only be in the way: our containerd has its own socket and state.
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    containerd runc containernetworking-plugins iptables iproute2 conntrack ethtool socat >/dev/null
}

# Refuses a host on which another Kubernetes or CNI network lives, before anything is made.
claim() {
  if [ ! -f "$MARKER" ]; then
    [ ! -e "$STATE" ] || [ -z "$(ls -A "$STATE")" ] || fail "$STATE is not empty and was not made by this script; set SLUICE_TESTBED to another directory"
    local chains
    chains=$(foreign_or_own_chains iptables)
    [ -z "$chains" ] || fail "another Kubernetes or CNI network has iptables chains here (${chains%%$'\n'*} …); use its KUBECONFIG instead"
    [ -z "$(pod_processes)" ] || fail "another kubelet runs pods here (cgroup kubepods); use its KUBECONFIG instead"
    ip link show "$BRIDGE" &>/dev/null && [ "$(cat "/sys/class/net/$BRIDGE/ifalias")" != "$BRIDGE_ALIAS" ] &&
      fail "a network interface $BRIDGE exists and is not ours"
    mkdir -p "$STATE"
    # What down.sh has to put back.
    cat /proc/sys/net/ipv4/ip_forward >"$MARKER"
  fi
  mkdir -p "$RUN" "$LOG" "$PKI"
}

# start COMPONENT COMMAND…: in a session of its own, so that it outlives the terminal and takes no signal meant for it.
start() {
  local name=$1
  shift
  [ -n "$(pid_of "$@")" ] && return
  setsid "$@" >>"$LOG/$name.log" 2>&1 </dev/null 9>&- &
}

# wait_for SECONDS COMPONENT COMMAND…: until COMMAND succeeds; on timeout shows the end of the component's log.
wait_for() {
  local deadline=$((SECONDS + $1)) name=$2
  shift 2
  until "$@" &>/dev/null; do
    if ((SECONDS >= deadline)); then
      tail -n 20 "$LOG/$name.log" >&2
      fail "$name is not ready ('$*' fails); the end of $LOG/$name.log is above"
    fi
    sleep 0.2
  done
}

kube() { "$CACHE/kubectl" --kubeconfig "$KUBECONFIG_FILE" "$@"; }

# The bridge exists before any pod, as its addresses are the nodes'.
make_bridge() {
  if [ ! -e "/sys/class/net/$BRIDGE" ]; then
    ip link add "$BRIDGE" type bridge
    ip link set "$BRIDGE" alias "$BRIDGE_ALIAS"
  fi
  ip addr replace "$NODE_IP/24" dev "$BRIDGE"
  ip addr replace "$SECOND_NODE_IP/32" dev "$BRIDGE"
  ip link set "$BRIDGE" up
  echo 1 >/proc/sys/net/ipv4/ip_forward
}

# One CA, one server certificate, and a token each for the administrator and the nodes.
make_credentials() {
  [ -f "$PKI/complete" ] && return
  local names="DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost,IP:127.0.0.1,IP:$API_SERVICE_IP,IP:$NODE_IP"
  openssl req -x509 -newkey rsa:2048 -nodes -keyout "$PKI/ca.key" -out "$PKI/ca.crt" -days 3650 -subj /CN=testbed-ca 2>/dev/null
  openssl req -newkey rsa:2048 -nodes -keyout "$PKI/apiserver.key" -out "$PKI/apiserver.csr" -subj /CN=kube-apiserver 2>/dev/null
  openssl x509 -req -in "$PKI/apiserver.csr" -CA "$PKI/ca.crt" -CAkey "$PKI/ca.key" -CAcreateserial -days 3650 \
    -out "$PKI/apiserver.crt" -extfile <(echo "subjectAltName=$names") 2>/dev/null
  openssl genrsa -out "$PKI/service-accounts.key" 2048 2>/dev/null
  openssl rsa -in "$PKI/service-accounts.key" -pubout -out "$PKI/service-accounts.pub" 2>/dev/null
  local user token
  for user in admin "${NODES[@]}"; do
    token=$(openssl rand -hex 16)
    if [ "$user" = admin ]; then
      echo "$token,admin,admin,system:masters" >"$PKI/tokens.csv"
      write_kubeconfig "$KUBECONFIG_FILE" admin "$token"
    else
      echo "$token,system:node:$user,$user,system:nodes" >>"$PKI/tokens.csv"
      write_kubeconfig "$PKI/$user.kubeconfig" "$user" "$token"
    fi
  done
  touch "$PKI/complete"
}

write_kubeconfig() {
  install -m 600 /dev/null "$1"
  cat >"$1" <<Y
apiVersion: v1
kind: Config
clusters: [{name: testbed, cluster: {server: "$API_SERVER", certificate-authority-data: "$(base64 -w0 <"$PKI/ca.crt")"}}]
users: [{name: $2, user: {token: "$3"}}]
contexts: [{name: testbed, context: {cluster: testbed, user: $2}}]
current-context: testbed
Y
}

# start_containerd NODE FIRST LAST: pods get addresses from FIRST to LAST.
start_containerd() {
  local node=$1 socket directory=$STATE/$1
  socket=$(socket_of "$node")
  mkdir -p "$directory/cni"
  # dataDir keeps the addresses that are taken in our directory; the plugin's default is shared by the whole host.
  cat >"$directory/cni/10-bridge.conflist" <<J
{"cniVersion": "1.0.0", "name": "$NETWORK", "plugins": [
  {"type": "bridge", "bridge": "$BRIDGE", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$directory/addresses", "routes": [{"dst": "0.0.0.0/0"}],
            "ranges": [[{"subnet": "10.244.0.0/24", "rangeStart": "$2", "rangeEnd": "$3", "gateway": "$NODE_IP"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
J
  # restrict_oom_score_adj: some virtual machines refuse a negative oom_score_adj, and then no pod starts.
  # netns_mounts_under_state_dir: so that down.sh finds the pods' network namespaces among its own mounts.
  cat >"$directory/containerd.toml" <<T
version = 2
root = "$directory/containerd"
state = "$RUN/$node"
[grpc]
  address = "$socket"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/sluice-testbed/pause:1"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$directory/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
T
  start "containerd-$node" containerd --config "$directory/containerd.toml"
  wait_for 30 "containerd-$node" ctr -a "$socket" version
  ctr -a "$socket" -n k8s.io images import "$CACHE/pause.tar" >/dev/null
}

# Listens on the bridge only: nothing outside this machine can reach it. Data need not survive the machine, so no fsync.
# A node that says nothing for 20 s (the default is 50) is not ready, and autoscalers look every 3 s (15): tests wait
# for that. Servers that extend the API are asked at their own addresses, not through kube-proxy.
start_control_plane() {
  start etcd "$CACHE/kube" etcd --data-dir "$STATE/etcd" --unsafe-no-fsync \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
  start kube-apiserver "$CACHE/kube" kube-apiserver --etcd-servers=http://127.0.0.1:2379 \
    --bind-address=$NODE_IP --advertise-address=$NODE_IP --secure-port=6443 --service-cluster-ip-range=$SERVICE_CIDR \
    --tls-cert-file="$PKI/apiserver.crt" --tls-private-key-file="$PKI/apiserver.key" \
    --token-auth-file="$PKI/tokens.csv" --authorization-mode=Node,RBAC --allow-privileged=true \
    --service-account-key-file="$PKI/service-accounts.pub" --service-account-signing-key-file="$PKI/service-accounts.key" \
    --service-account-issuer=https://kubernetes.default.svc --kubelet-preferred-address-types=InternalIP \
    --enable-aggregator-routing=true
  wait_for 120 kube-apiserver kube get --raw /readyz
  start kube-controller-manager "$CACHE/kube" kube-controller-manager --kubeconfig="$KUBECONFIG_FILE" --bind-address=127.0.0.1 \
    --service-account-private-key-file="$PKI/service-accounts.key" --root-ca-file="$PKI/ca.crt" \
    --use-service-account-credentials=true --leader-elect=false --node-monitor-grace-period=20s \
    --horizontal-pod-autoscaler-sync-period=3s
  start kube-scheduler "$CACHE/kube" kube-scheduler --kubeconfig="$KUBECONFIG_FILE" --bind-address=127.0.0.1 --leader-elect=false
}

start_kubelet() {
  local node=$1 directory=$STATE/$1 cgroup
  cgroup=$(cgroup_of "$node")
  mkdir -p "$directory"
  # Another tree than that of the first node, which ends what it does not know below its own.
  [ "$cgroup" = / ] || make_cgroup "$cgroup"
  echo "# no search domains of the host: names mean the same in pods everywhere" >"$STATE/resolv.conf"
  # failCgroupV1: version 1 still works, and some machines have nothing else.
  # imageGCHighThresholdPercent 100: images are imported by hand, so the kubelet must never remove one.
  cat >"$directory/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $(ip_of "$node")
healthzPort: 0
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: $cgroup
failCgroupV1: false
failSwapOn: false
clusterDNS: [$DNS_SERVICE_IP]
clusterDomain: cluster.local
resolvConf: $STATE/resolv.conf
containerRuntimeEndpoint: unix://$(socket_of "$node")
evictionHard: {nodefs.available: "1%", imagefs.available: "1%", memory.available: "100Mi"}
imageGCHighThresholdPercent: 100
syncFrequency: 10s
nodeStatusUpdateFrequency: 5s
Y
  start "kubelet-$node" "$CACHE/kube" kubelet --config="$directory/kubelet.yaml" --kubeconfig="$PKI/$node.kubeconfig" \
    --hostname-override="$node" --node-ip="$(ip_of "$node")" --root-dir="$directory/kubelet" --cert-dir="$directory/kubelet-pki"
}

make_cgroup() {
  local tree
  if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir -p "/sys/fs/cgroup$1"
  else
    for tree in /sys/fs/cgroup/*/; do [ ! -f "$tree/cgroup.procs" ] || mkdir -p "$tree$1"; done
  fi
}

start_proxy() {
  # Zeros leave the host's connection-tracking limits alone.
  cat >"$STATE/kube-proxy.yaml" <<Y
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: $POD_CIDR
hostnameOverride: ${NODES[0]}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
clientConnection: {kubeconfig: $KUBECONFIG_FILE}
healthzBindAddress: 127.0.0.1:$PROXY_HEALTH_PORT
metricsBindAddress: 127.0.0.1:10249
Y
  start kube-proxy "$CACHE/kube" kube-proxy --config="$STATE/kube-proxy.yaml"
}

# DNS runs on the node; a Service without selector and a hand-made EndpointSlice lead pods to it.
start_dns() {
  cat >"$STATE/Corefile" <<C
.:$DNS_PORT {
  bind $NODE_IP
  errors
  kubernetes cluster.local in-addr.arpa {
    kubeconfig $KUBECONFIG_FILE testbed
    pods insecure
  }
  cache 2
}
C
  start coredns "$CACHE/coredns" -conf "$STATE/Corefile"
  kube apply -f - >/dev/null <<Y
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec:
  clusterIP: $DNS_SERVICE_IP
  ports: [{name: dns, port: 53, protocol: UDP, targetPort: $DNS_PORT}, {name: dns-tcp, port: 53, protocol: TCP, targetPort: $DNS_PORT}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kube-dns-host, namespace: kube-system, labels: {kubernetes.io/service-name: kube-dns}}
addressType: IPv4
ports: [{name: dns, port: $DNS_PORT, protocol: UDP}, {name: dns-tcp, port: $DNS_PORT, protocol: TCP}]
endpoints: [{addresses: ["$NODE_IP"], conditions: {ready: true}}]
Y
}

# kube-proxy runs, and has made the rules by which pods reach the API server and the DNS. Its health says nothing of
# rules before the first ones, and rules outlive it.
proxy_is_usable() {
  local address rules answer
  rules=$(iptables-save -t nat)
  for address in $API_SERVICE_IP $DNS_SERVICE_IP; do
    grep -q -- "^-A KUBE-SERVICES -d $address/32 .*-j KUBE-SVC-" <<<"$rules" || return
  done
  answer=$(exec 3<>"/dev/tcp/127.0.0.1/$PROXY_HEALTH_PORT" && printf 'GET /healthz HTTP/1.0\r\n\r\n' >&3 && head -n 1 <&3)
  [[ $answer == *" 200 "* ]]
}

wait_until_usable() {
  local node
  for node in "${NODES[@]}"; do
    wait_for 60 "kubelet-$node" kube get node "$node"
    wait_for 60 "kubelet-$node" kube wait --for=condition=Ready "node/$node" --timeout=1s
  done
  wait_for 30 coredns bash -c "exec 3<>/dev/tcp/$NODE_IP/$DNS_PORT"
  wait_for 60 kube-proxy proxy_is_usable
  # Without it the first pods are refused.
  wait_for 30 kube-controller-manager kube get serviceaccount default
}

need_root
take_lock
install_packages
"$HERE/build.sh"
claim
make_bridge
make_credentials
start_containerd testbed 10.244.0.2 10.244.0.127
start_containerd testbed-2 10.244.0.128 10.244.0.253
start_control_plane
for node in "${NODES[@]}"; do start_kubelet "$node"; done
start_proxy
start_dns
wait_until_usable
echo "export KUBECONFIG=$KUBECONFIG_FILE"
