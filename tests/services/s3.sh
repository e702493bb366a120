#!/usr/bin/env bash
# s3.sh install|start|stop|kill9|status|clean|env
#
# A real S3 server for tests, without Docker: versitygw, from its Go module, built once into the cache. Several can run
# at once, each with a directory and a port of its own.
#
#   SLUICE_S3_DIR      data and log                              (<tmp>/sluice-s3)
#   SLUICE_S3_ADDRESS  address it listens on; the bridge's for pods   (127.0.0.1)
#   SLUICE_S3_PORT     port                                      (18333)
#   SLUICE_S3_BUCKET   a bucket that start makes                 (checkpoints)
#   SLUICE_S3_ACCESS_KEY, SLUICE_S3_SECRET_KEY                   (fixed ones, only for tests)
#
# `start` returns when a signed PUT has succeeded. After kill9, `start` finds every object that was acknowledged.
# `env` prints shell lines for clients. It is known to answer 200 to a CompleteMultipartUpload of an aborted upload when
# the key exists, and to refuse an object whose key is also a prefix of others.
set -euo pipefail
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
NAME=sluice-s3
STATE=${SLUICE_S3_DIR:-${TMPDIR:-/tmp}/sluice-s3}
PID_FILE=$STATE/pid
# shellcheck source=common.sh
. "$HERE/common.sh"

VERSION=v1.8.0
PROGRAM=$CACHE/s3/$VERSION/versitygw
PORT=${SLUICE_S3_PORT:-18333}
ADDRESS=${SLUICE_S3_ADDRESS:-127.0.0.1}
URL=http://$ADDRESS:$PORT
BUCKET=${SLUICE_S3_BUCKET:-checkpoints}
ACCESS_KEY=${SLUICE_S3_ACCESS_KEY:-sluicetestaccess}
SECRET_KEY=${SLUICE_S3_SECRET_KEY:-sluicetestsecret0123}
LOG=$STATE/s3.log

install_program() {
  [ -x "$PROGRAM" ] && return
  command -v go >/dev/null || fail "Go is missing: it builds the S3 server from its module"
  mkdir -p "$CACHE/s3"
  exec 8>"$CACHE/s3/lock"
  flock 8
  if [ ! -x "$PROGRAM" ]; then
    # Built beside its place: a build that is killed leaves nothing that looks complete.
    GOBIN=$CACHE/s3/new CGO_ENABLED=0 go install -trimpath -ldflags="-s -w" "github.com/versity/versitygw/cmd/versitygw@$VERSION" >&2
    rm -rf "$CACHE/s3/$VERSION"
    mv "$CACHE/s3/new" "$CACHE/s3/$VERSION"
  fi
  exec 8>&-
}

# request METHOD PATH [BODY]: prints the HTTP status of a signed request.
request() {
  curl -s -o /dev/null -m 20 -w '%{http_code}' --noproxy '*' --user "$ACCESS_KEY:$SECRET_KEY" --aws-sigv4 aws:amz:us-east-1:s3 \
    -H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' -X "$1" ${3+--data-binary "$3"} "$URL$2" || true
}

# The bucket is there (409: it was before) and takes an object.
is_ready() {
  case $(request PUT "/$BUCKET") in 200 | 409) ;; *) return 1 ;; esac
  [ "$(request PUT "/$BUCKET/.ready" ready)" = 200 ] && request DELETE "/$BUCKET/.ready" >/dev/null
}

start_server() {
  mkdir -p "$STATE/data"
  export ROOT_ACCESS_KEY=$ACCESS_KEY ROOT_SECRET_KEY=$SECRET_KEY
  launch "$LOG" "$PROGRAM" --quiet --port "$ADDRESS:$PORT" --region us-east-1 posix "$STATE/data"
  for _ in $(seq 600); do
    running_pid >/dev/null || { tail -n 20 "$LOG" >&2; fail "the server ended; the end of $LOG is above"; }
    if is_ready; then
      echo "$NAME: ready, pid $(running_pid), $URL, bucket $BUCKET"
      return
    fi
    sleep 0.05
  done
  tail -n 20 "$LOG" >&2
  fail "the server is not ready after 30 s; the end of $LOG is above"
}

case ${1:-} in
  install) install_program ;;
  start)
    if running_pid >/dev/null; then print_status; exit 0; fi
    install_program
    claim_state
    start_server
    ;;
  stop) stop_server ;;
  kill9) kill_server ;;
  status) print_status ;;
  clean) clean_state ;;
  env) echo "export AWS_ENDPOINT_URL=$URL AWS_ACCESS_KEY_ID=$ACCESS_KEY AWS_SECRET_ACCESS_KEY=$SECRET_KEY AWS_REGION=us-east-1" ;;
  *) echo "usage: $0 install|start|stop|kill9|status|clean|env" >&2; exit 2 ;;
esac
