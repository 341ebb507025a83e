//go:build tools

// Package tools pins what crictl is built from.
package tools

import _ "sigs.k8s.io/cri-tools/cmd/crictl"
