//go:build tools

// Package tools pins what CoreDNS is built from.
package tools

import _ "github.com/coredns/coredns"
