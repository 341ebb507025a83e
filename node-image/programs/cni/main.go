// cni connects the pods of a kind cluster: it tells its node's containerd which addresses the node's pods get, and keeps routes to the other
// nodes' pods. All nodes are on one network of Docker's, so a route by the node's address is enough. Nodes without a kubelet have no pods
// to reach.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/vishvananda/netlink"
)

const (
	account  = "/var/run/secrets/kubernetes.io/serviceaccount/"
	folder   = "/etc/cni/net.d/"
	interval = 3 * time.Second
)

type object = map[string]any

type nodeList struct {
	Items []struct {
		Metadata struct{ Name string }
		Spec     struct{ PodCIDR string }
		Status   struct {
			Addresses []struct{ Type, Address string }
		}
	}
}

func main() {
	log.SetFlags(0)
	authority, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		log.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	// The API server itself, because the Service's address needs kube-proxy.
	host := os.Getenv("CONTROL_PLANE_ENDPOINT")
	if host == "" {
		host = net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	}
	// Resource version 0 is answered from the API server's memory.
	query := url.Values{"resourceVersion": {"0"}, "labelSelector": {"orchlab/kubelet!=simulated"}}
	address := "https://" + host + "/api/v1/nodes?" + query.Encode()
	said := ""
	for ; ; time.Sleep(interval) {
		nodes, err := list(client, address)
		if err == nil {
			err = apply(nodes, os.Getenv("NODE_NAME"))
		}
		now := ""
		if err != nil {
			now = err.Error()
		}
		if now != said && now != "" {
			log.Print(now)
		}
		said = now
	}
}

func list(client *http.Client, address string) (*nodeList, error) {
	token, err := os.ReadFile(account + "token") // renewed while this runs
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+string(token))
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the API server answered %s", response.Status)
	}
	nodes := &nodeList{}
	return nodes, json.NewDecoder(response.Body).Decode(nodes)
}

// apply goes on after a failure; the last one is returned.
func apply(nodes *nodeList, own string) (failure error) {
	for _, node := range nodes.Items {
		_, pods, err := net.ParseCIDR(node.Spec.PodCIDR)
		if err != nil {
			continue // it has none yet
		}
		if node.Metadata.Name == own {
			if err := configure(pods.String()); err != nil {
				failure = err
			}
			continue
		}
		for _, address := range node.Status.Addresses {
			if address.Type != "InternalIP" {
				continue
			}
			if err := netlink.RouteReplace(&netlink.Route{Dst: pods, Gw: net.ParseIP(address.Address)}); err != nil {
				failure = fmt.Errorf("no route to %s by %s: %w", pods, address.Address, err)
			}
			break
		}
	}
	return failure
}

func configure(pods string) error {
	addresses := object{"type": "host-local", "dataDir": "/run/cni-ipam-state",
		"routes": []object{{"dst": "0.0.0.0/0"}}, "ranges": [][]object{{{"subnet": pods}}}}
	content, err := json.Marshal(object{"cniVersion": "0.3.1", "name": "orchlab", "plugins": []object{
		{"type": "ptp", "ipMasq": false, "ipam": addresses},
		{"type": "portmap", "capabilities": object{"portMappings": true}},
	}})
	if err != nil {
		return err
	}
	target := folder + "10-orchlab.conflist"
	if old, err := os.ReadFile(target); err == nil && bytes.Equal(old, content) {
		return nil
	}
	// containerd reads the folder at any time: a file appears whole.
	if err := os.WriteFile(folder+".new", content, 0o644); err != nil {
		return err
	}
	log.Printf("pods of this node are in %s", pods)
	return os.Rename(folder+".new", target)
}
