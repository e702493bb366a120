#!/usr/bin/env bash
# Builds what the testbed runs, once, into the cache: `kube`, `coredns` and the image of the pause container.
#
# A build is repeated only when its sources changed: their checksum lies beside the binary, written last, so a build
# that was killed is built again. Needs Go and a C compiler.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "$0")/common.sh"

checksum() { cat "$@" | sha256sum | cut -d' ' -f1; }

# build_once NAME SOURCE… -- COMMAND…: runs COMMAND unless NAME was built from these sources.
build_once() {
  local name=$1 sources=() sum
  shift
  while [ "$1" != -- ]; do sources+=("$1"); shift; done
  shift
  sum=$(checksum "${sources[@]}")
  [ -s "$CACHE/$name" ] && [ "$(cat "$CACHE/$name.sum" 2>/dev/null)" = "$sum" ] && return
  say "building $name"
  "$@"
  echo "$sum" >"$CACHE/$name.sum"
}

# Written beside its place and moved there, as a running binary can't be overwritten.
go_build() {
  local name=$1 flags=${2:-}
  command -v go >/dev/null || fail "Go is missing: it builds Kubernetes and CoreDNS from their modules"
  (cd "$HERE/$3" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w $flags" -o "$CACHE/$name.new" .)
  mv "$CACHE/$name.new" "$CACHE/$name"
}

# Kubernetes takes its version from the linker. Without it kubelet and API server refuse each other.
build_kube() {
  local version=component-base/version module
  module=$(sed -nE 's#^\tk8s.io/kubernetes (v[0-9.]+)$#\1#p' "$HERE/kube/go.mod")
  local minor=${module#v*.}
  go_build kube "-X k8s.io/$version.gitVersion=$module -X k8s.io/$version.gitMajor=1 -X k8s.io/$version.gitMinor=${minor%%.*}" kube
}

# The smallest image there is: one layer with one static program, in the format that `docker save` writes.
build_pause() {
  local work layer config
  work=$(mktemp -d)
  cc -static -Os -o "$work/pause" "$HERE/pause.c"
  reproducible_tar "$work/layer.tar" "$work" pause
  layer=$(checksum "$work/layer.tar")
  printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":["/pause"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$(go env GOARCH)" "$layer" >"$work/config.json"
  config=$(checksum "$work/config.json")
  mv "$work/config.json" "$work/$config.json"
  printf '[{"Config":"%s.json","RepoTags":["docker.io/sluice-testbed/pause:1"],"Layers":["layer.tar"]}]' "$config" >"$work/manifest.json"
  reproducible_tar "$CACHE/pause.tar" "$work" "$config.json" layer.tar manifest.json
  rm -rf "$work"
}

reproducible_tar() {
  local out=$1 from=$2
  shift 2
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$from" -cf "$out" "$@"
}

mkdir -p "$CACHE"
exec 8>"$CACHE/lock" # two builds at once would use the same temporary names
flock 8
build_once kube "$HERE"/kube/{go.mod,go.sum,main.go} -- build_kube
build_once coredns "$HERE"/dns/{go.mod,go.sum,main.go} -- go_build coredns "" dns
build_once pause.tar "$HERE/pause.c" "$HERE/build.sh" -- build_pause
ln -sf kube "$CACHE/kubectl"
