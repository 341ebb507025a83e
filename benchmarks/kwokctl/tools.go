//go:build tools

// Package tools pins what the benchmarks compare with.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwokctl"
