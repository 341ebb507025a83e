//go:build tools

// Package tools pins what this engine is built from.
package tools

import _ "sigs.k8s.io/scheduler-plugins/cmd/scheduler"
