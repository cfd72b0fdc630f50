#!/usr/bin/env bash
# k8s.io/apiserver 0.34.4 (Go), the CEL of CRDs' validation rules: of two objects with x-kubernetes-preserve-unknown-fields,
# `self == oldSelf` compares the number of fields and the values of those that both have. A field that
# has another name in one of them is passed over, so that the objects count as equal.
#
# It concerns the level at which the schema has the mark: below a field that the schema does not
# know, all is compared. A rule such as `self.config == oldSelf.config`, the usual way to say that a
# field cannot change, so takes a change of a name. kube-apiserver 1.34.4 did.
#
# Output as seen:
#   another value: false
#   one more field: false
#   another name: true
#   another name, one level below: false
#
# Fails if the library behaves otherwise. Needs Go 1.24 or later and its module proxy.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat >go.mod <<'MOD'
module seen

go 1.24.0

require (
	k8s.io/apiextensions-apiserver v0.34.4
	k8s.io/apiserver v0.34.4
)
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiserver/pkg/cel/common"
)

func main() {
	kept := &model.Structural{Structural: &schema.Structural{
		Generic:    schema.Generic{Type: "object"},
		Extensions: schema.Extensions{XPreserveUnknownFields: true},
	}}
	type object = map[string]interface{}
	before := object{"lr": int64(1), "steps": int64(2), "model": object{"width": int64(3)}}
	for _, one := range []struct {
		name  string
		after object
	}{
		{"another value", object{"lr": int64(9), "steps": int64(2), "model": object{"width": int64(3)}}},
		{"one more field", object{"lr": int64(1), "steps": int64(2), "model": object{"width": int64(3)}, "seed": int64(4)}},
		{"another name", object{"rate": int64(1), "steps": int64(2), "model": object{"width": int64(3)}}},
		{"another name, one level below", object{"lr": int64(1), "steps": int64(2), "model": object{"depth": int64(3)}}},
	} {
		equal := common.UnstructuredToVal(one.after, kept).Equal(common.UnstructuredToVal(before, kept))
		fmt.Printf("%s: %v\n", one.name, equal.Value())
	}
}
GO
GOFLAGS=-mod=mod go run . 2>"$folder/errors" >"$folder/seen" || { tail -5 "$folder/errors" >&2; exit 1; }
cat "$folder/seen"
diff "$folder/seen" - <<'SEEN'
another value: false
one more field: false
another name: true
another name, one level below: false
SEEN
