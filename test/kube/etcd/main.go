// Command etcd is the server of go.etcd.io/etcd, which publishes its main as a
// module of its own only.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
