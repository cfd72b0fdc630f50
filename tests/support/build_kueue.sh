#!/bin/bash
# Compiles Kueue's controller from its Go module into a folder: no binary of it is published. Takes some
# minutes, once.
#
#   build_kueue.sh FOLDER VERSION
#
# Progress goes to stderr.
set -euo pipefail

target=${1:?usage: build_kueue.sh FOLDER VERSION}
version=${2:?usage: build_kueue.sh FOLDER VERSION}
mkdir -p "$target"
target=$(cd "$target" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CGO_ENABLED=0

upstream=$(cd / && go mod download -json "sigs.k8s.io/kueue@$version" | sed -n 's/^\s*"Dir": "\(.*\)",$/\1/p')
# With its own go.mod, so that each dependency has the version that Kueue was tested with.
cp "$upstream/go.mod" "$upstream/go.sum" "$work"
chmod u+w "$work"/go.*
cd "$work"
sed -i 's#^module .*#module tools#' go.mod
go mod edit -require "sigs.k8s.io/kueue@$version"
printf '//go:build tools\n\npackage tools\n\nimport _ "sigs.k8s.io/kueue/cmd/kueue"\n' > tools.go
echo "compiling Kueue $version" >&2
go build -mod=mod -trimpath -ldflags "-s -w" -o "$target/.kueue" sigs.k8s.io/kueue/cmd/kueue >&2
# Renamed only when complete, so that an interrupted build never leaves half a binary to be found.
mv "$target/.kueue" "$target/kueue"
