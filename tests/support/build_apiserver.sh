#!/bin/bash
# Compiles etcd and kube-apiserver from their Go modules into a folder: the last resort of the tests
# that need a real API server, for machines that have Go but no binaries. Takes some minutes, once.
#
#   build_apiserver.sh FOLDER [KUBERNETES]
#
# KUBERNETES is a version such as 1.30.14. Progress goes to stderr. What FOLDER already holds is kept.
set -euo pipefail

target=${1:?usage: build_apiserver.sh FOLDER [KUBERNETES]}
kubernetes=${2:-1.34.4}
etcd=v3.6.4
mkdir -p "$target"
target=$(cd "$target" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A newer Kubernetes may need a newer Go than this machine's; the module proxy has it as a module.
export GOFLAGS=-mod=mod CGO_ENABLED=0 GOTOOLCHAIN=auto

# build NAME PACKAGE VARIABLES: compiles PACKAGE of the module in the current folder. Renamed only when
# complete, so that an interrupted build never leaves half a binary to be found.
build() {
  printf '//go:build tools\n\npackage tools\n\nimport _ "%s"\n' "$2" > tools.go
  go mod tidy -e >/dev/null 2>&1
  go build -trimpath -ldflags "-s -w $3" -o "$target/.$1" "$2" >&2
  mv "$target/.$1" "$target/$1"
}

if [ ! -x "$target/etcd" ]; then
  echo "compiling etcd $etcd" >&2
  mkdir "$work/etcd" && cd "$work/etcd"
  printf 'module tools\n\ngo 1.24.0\n\nrequire go.etcd.io/etcd/server/v3 %s\n' "$etcd" > go.mod
  build etcd go.etcd.io/etcd/server/v3 ""
fi

if [ ! -x "$target/kube-apiserver" ]; then
  echo "compiling kube-apiserver v$kubernetes" >&2
  mkdir "$work/kubernetes" && cd "$work/kubernetes"
  # k8s.io/kubernetes replaces its own parts by folders that its module does not hold; the same parts
  # are published as modules v0.MINOR.PATCH, and only the main module's replacements count.
  upstream=$(cd / && go mod download -json "k8s.io/kubernetes@v$kubernetes" |
    sed -n 's/^\s*"GoMod": "\(.*\)",$/\1/p')
  {
    printf 'module tools\n\ngo 1.24.0\n\nrequire k8s.io/kubernetes v%s\n\nreplace (\n' "$kubernetes"
    sed -n 's#^\s*\(k8s\.io/[a-z0-9-]*\) => \./staging/.*#\1#p' "$upstream" |
      while read -r part; do printf '\t%s => %s v0.%s\n' "$part" "$part" "${kubernetes#1.}"; done
    echo ')'
  } > go.mod
  stamp=k8s.io/component-base/version
  minor=${kubernetes#1.}
  build kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver \
    "-X $stamp.gitVersion=v$kubernetes -X $stamp.gitMajor=1 -X $stamp.gitMinor=${minor%.*}"
fi
