#!/bin/bash
# Compiles Kueue's controller from its Go module into a folder: no binary of it is published. Takes some
# minutes, once.
#
#   build_kueue.sh FOLDER [KUEUE]
#
# KUEUE is a version such as 0.17.0. Progress goes to stderr. What FOLDER already holds is kept.
set -euo pipefail

target=${1:?usage: build_kueue.sh FOLDER [KUEUE]}
kueue=${2:-0.17.0}
mkdir -p "$target"
target=$(cd "$target" && pwd)
[ ! -x "$target/kueue" ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export GOFLAGS=-mod=mod CGO_ENABLED=0 GOTOOLCHAIN=auto

module=$(cd / && go mod download -json "sigs.k8s.io/kueue@v$kueue" |
  sed -n 's/^\s*"Dir": "\(.*\)",$/\1/p')
# Compiled in its own folder, so that each dependency has the version that Kueue was released with.
cp -r "$module" "$work/kueue"
chmod -R u+w "$work/kueue"
cd "$work/kueue"
# It takes the certificate of its metrics from one fixed folder, which takes root to write. From a folder
# in the one that it is started in instead; nothing else of it is changed.
sed -i 's#"/etc/kueue/metrics/certs"#"metrics-certificates"#' cmd/kueue/main.go
grep -q '"metrics-certificates"' cmd/kueue/main.go
echo "compiling Kueue v$kueue" >&2
go build -trimpath -ldflags "-s -w" -o "$target/.kueue" ./cmd/kueue >&2
# Renamed only when complete, so that an interrupted build never leaves half a binary to be found.
mv "$target/.kueue" "$target/kueue"
