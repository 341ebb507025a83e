//go:build tools

// Package tools pins what kind is built from.
package tools

import _ "sigs.k8s.io/kind"
