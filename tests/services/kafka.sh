#!/usr/bin/env bash
# kafka.sh install|start|stop|kill9|status|clean|tool CLASS ARGUMENT…
#
# A real Apache Kafka broker (KRaft, one node) for tests, without Docker: the jars come through Maven, once, into the
# cache. Several can run at once, each with a directory and a port of its own; the three ports above it are used too.
#
#   SLUICE_KAFKA_DIR      data, configuration and log       (<tmp>/sluice-kafka)
#   SLUICE_KAFKA_PORT     clients on 127.0.0.1              (19092); + 1 the controller, + 2 the bridge's listener
#   SLUICE_KAFKA_BRIDGE   a second address that clients (pods) reach it by, such as 10.244.0.1   (none)
#   SLUICE_KAFKA_SECURE   1: a listener with TLS and passwords on port + 3, for clients with a certificate; see `tls` below
#   SLUICE_KAFKA_HEAP     largest heap                      (256m)
#   SLUICE_KAFKA_COMPILER 1: starts fast; 4: runs fast      (1)
#   SLUICE_KAFKA_EXTRA    further lines of server.properties
#   SLUICE_KAFKA_VERSION  of the broker                     (4.4.0)
#   SLUICE_KAFKA_FEATURES levels of features that data are made with, such as transaction.version=1, with spaces between   (the newest)
#   SLUICE_KAFKA_CLUSTER  what the cluster calls itself     (sluice-test-cluster-01)
#
# `start` returns when the broker takes clients, and prints its addresses. After kill9, `start` finds all that was
# acknowledged. `tool org.apache.kafka.tools.TopicCommand --list …` runs one of Kafka's own tools.
# shellcheck disable=SC2030,SC2031 # write_class_archive runs a second broker in a subshell, for its own variables
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
NAME=sluice-kafka
STATE=${SLUICE_KAFKA_DIR:-${TMPDIR:-/tmp}/sluice-kafka}
PID_FILE=$STATE/pid
# shellcheck source=common.sh
. "$HERE/common.sh"

PORT=${SLUICE_KAFKA_PORT:-19092}
BRIDGE=${SLUICE_KAFKA_BRIDGE:-}
SECURE=${SLUICE_KAFKA_SECURE:-}
VERSION=${SLUICE_KAFKA_VERSION:-4.4.0}
JARS=$CACHE/kafka-$VERSION
LOG=$STATE/kafka.log
PROPERTIES=$STATE/server.properties

JAVA_OPTIONS=(
  -Xmx"${SLUICE_KAFKA_HEAP:-256m}" -Xms64m -XX:+UseSerialGC -XX:MaxMetaspaceSize=128m -XX:ReservedCodeCacheSize=64m
  -XX:TieredStopAtLevel="${SLUICE_KAFKA_COMPILER:-1}" -Djava.awt.headless=true
  -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -Dorg.slf4j.simpleLogger.showDateTime=true
  -Dorg.slf4j.simpleLogger.log.kafka.server.KafkaRaftServer=info
)

# Of the secure listener: the authority (ca.pem), the broker's and the client's certificates and keys, made once. Users are
# `alice` with `alice secret` by PLAIN and `carol` with `carol secret` by SCRAM-SHA-512.
make_certificates() {
  local tls=$STATE/tls role
  [ ! -f "$tls/done" ] || return 0
  mkdir -p "$tls"
  local curve=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
  openssl req -x509 "${curve[@]}" -days 30 -subj /CN=sluice-test-authority -keyout "$tls/ca.key" -out "$tls/ca.pem"
  for role in server client; do
    openssl req "${curve[@]}" -subj "/CN=$role" -keyout "$tls/$role.key" -out "$tls/$role.csr"
    openssl x509 -req -in "$tls/$role.csr" -CA "$tls/ca.pem" -CAkey "$tls/ca.key" -CAcreateserial -days 30 \
      -extfile <(echo subjectAltName=IP:127.0.0.1,DNS:localhost) -out "$tls/$role.pem"
    cat "$tls/$role.key" "$tls/$role.pem" >"$tls/$role.store.pem"
  done
  touch "$tls/done"
}

# The lines of the secure listener.
secure_properties() {
  cat <<P
listener.name.secure.ssl.keystore.type=PEM
listener.name.secure.ssl.keystore.location=$STATE/tls/server.store.pem
listener.name.secure.ssl.truststore.type=PEM
listener.name.secure.ssl.truststore.location=$STATE/tls/ca.pem
listener.name.secure.ssl.client.auth=required
listener.name.secure.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.secure.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice secret";
listener.name.secure.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
P
}

class_path() { printf '%s:' "$JARS"/jars/*.jar; }

# Copies the jars, then starts a broker once to write the archive. The checksum is written last.
install_jars() {
  local sum
  sum=$(sha256sum <"$HERE/pom.xml" | cut -d' ' -f1)
  mkdir -p "$JARS"
  exec 8>"$JARS/lock"
  flock 8
  if [ "$(cat "$JARS/sum" 2>/dev/null)" != "$sum" ]; then
    command -v mvn >/dev/null || fail "Maven is missing: it brings Kafka's jars"
    rm -rf "$JARS/jars" "$JARS/classes.jsa"
    mvn -q -B -f "$HERE/pom.xml" -Dkafka.version="$VERSION" dependency:copy-dependencies \
      -DincludeScope=runtime -DoutputDirectory="$JARS/jars" >&2
    write_class_archive
    echo "$sum" >"$JARS/sum"
  fi
  exec 8>&-
}

# Kafka runs as well without the archive, so a failure here is not one of the installation.
write_class_archive() {
  local work
  work=$(mktemp -d)
  (
    STATE=$work/kafka PID_FILE=$work/kafka/pid LOG=$work/kafka/kafka.log PROPERTIES=$work/kafka/server.properties
    PORT=39092 BRIDGE='' SECURE=''
    claim_state
    start_broker "-XX:ArchiveClassesAtExit=$JARS/classes.jsa"
    stop_server
  ) >&2 || echo "$NAME: no class archive was written; the broker will start more slowly" >&2
  rm -rf "$work"
}

# Short sessions and timeouts: what a killed broker or client left must be noticed within a test's patience. The script
# that aborts transactions in time-out looks each second instead of every ten.
write_properties() {
  local listeners="CLIENT://127.0.0.1:$PORT" protocols=CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT
  if [ -n "$BRIDGE" ]; then
    listeners+=",BRIDGE://$BRIDGE:$((PORT + 2))"
    protocols+=,BRIDGE:PLAINTEXT
  fi
  if [ -n "$SECURE" ]; then
    listeners+=",SECURE://127.0.0.1:$((PORT + 3))"
    protocols+=,SECURE:SASL_SSL
  fi
  cat >"$PROPERTIES" <<P
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((PORT + 1))
listeners=$listeners,CONTROLLER://127.0.0.1:$((PORT + 1))
advertised.listeners=$listeners
listener.security.protocol.map=$protocols
controller.listener.names=CONTROLLER
inter.broker.listener.name=CLIENT
log.dirs=$STATE/data
num.partitions=1
auto.create.topics.enable=false
default.replication.factor=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
group.consumer.min.heartbeat.interval.ms=500
group.consumer.heartbeat.interval.ms=500
group.consumer.min.session.timeout.ms=3000
group.consumer.session.timeout.ms=6000
group.min.session.timeout.ms=1000
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
num.network.threads=2
num.io.threads=2
background.threads=2
num.recovery.threads.per.data.dir=1
log.cleaner.dedupe.buffer.size=8388608
${SLUICE_KAFKA_EXTRA:-}
P
  [ -z "$SECURE" ] || secure_properties >>"$PROPERTIES"
}

# start_broker JAVA-OPTION…: ready is when the broker says so (it is then unfenced) and its port takes connections.
start_broker() {
  local options=("${JAVA_OPTIONS[@]}" "$@") format=(-t "${SLUICE_KAFKA_CLUSTER:-sluice-test-cluster-01}") feature
  for feature in ${SLUICE_KAFKA_FEATURES:-}; do format+=(--feature "$feature"); done
  if [ -n "$SECURE" ]; then
    make_certificates >>"$LOG" 2>&1 || fail "can't make certificates with openssl; see $LOG"
    format+=(--add-scram 'SCRAM-SHA-512=[name=carol,password=carol secret]')
  fi
  write_properties
  if [ ! -f "$STATE/data/meta.properties" ]; then
    java "${options[@]}" -cp "$(class_path)" kafka.tools.StorageTool format --ignore-formatted \
      -c "$PROPERTIES" "${format[@]}" >>"$LOG" 2>&1 || fail "can't format $STATE/data; see $LOG"
  fi
  local before
  before=$(stat -c %s "$LOG" 2>/dev/null || echo 0)
  launch "$LOG" java "${options[@]}" -cp "$(class_path)" kafka.Kafka "$PROPERTIES"
  for _ in $(seq 900); do
    running_pid >/dev/null || { tail -n 20 "$LOG" >&2; fail "the broker ended; the end of $LOG is above"; }
    if tail -c "+$((before + 1))" "$LOG" | grep -q 'Kafka Server started' && (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; then
      echo "$NAME: ready, pid $(running_pid), bootstrap 127.0.0.1:$PORT${BRIDGE:+, for pods $BRIDGE:$((PORT + 2))}"
      return
    fi
    sleep 0.1
  done
  tail -n 20 "$LOG" >&2
  fail "the broker is not ready after 90 s; the end of $LOG is above"
}

case ${1:-} in
  install) install_jars ;;
  start)
    if running_pid >/dev/null; then print_status; exit 0; fi
    command -v java >/dev/null || fail "Java is missing: Kafka runs on it"
    install_jars
    claim_state
    # The archive of loaded classes halves the start. Java ignores one that another Java or other jars have made.
    start_broker -Xshare:auto "-XX:SharedArchiveFile=$JARS/classes.jsa"
    ;;
  stop) stop_server ;;
  kill9) kill_server ;;
  status) print_status ;;
  clean) clean_state ;;
  tool)
    shift
    install_jars
    exec java -Xmx512m -XX:+UseSerialGC -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$(class_path)" "$@"
    ;;
  *) echo "usage: $0 install|start|stop|kill9|status|clean|tool CLASS ARGUMENT…" >&2; exit 2 ;;
esac
