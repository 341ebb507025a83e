//go:build tools

// Package tools pins what this engine is built from.
package tools

import _ "go.etcd.io/etcd/server/v3"
