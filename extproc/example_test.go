package extproc_test

import (
	"context"
	"fmt"
	"net"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"epp.internal/epp"
	"epp.internal/epp/block"
	"epp.internal/epp/decision"
	"epp.internal/epp/epptest"
	"epp.internal/epp/extproc"
	"epp.internal/epp/fleet"
	"epp.internal/epp/kvindex"
	"epp.internal/epp/picker"
	"epp.internal/epp/route"
)

// A gateway sends a request's headers and body; it is told where to go, in a
// header and in metadata.
func Example() {
	const key = block.Key(1)
	index := kvindex.New(kvindex.Options{Key: key})
	table := fleet.New(fleet.Options{Index: index})
	table.Join(epp.Endpoint{Name: "vllm-0", Address: "10.0.0.7:8000"})
	policy, _ := route.New(decision.Defaults())
	pk := picker.New(picker.Options{Fleet: table, Index: index, Policy: policy, Key: key})

	s := extproc.NewServer(extproc.Options{Pick: extproc.By(pk), Insecure: true, DrainTime: time.Millisecond})
	l, _ := net.Listen("tcp", "127.0.0.1:0")
	go s.Serve(l)
	defer s.Shutdown(context.Background())

	gateway, _ := epptest.NewDriver(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	defer gateway.Close()
	c, err := gateway.Exchange(context.Background(), epptest.Exchange{
		RequestMode: filterv3.ProcessingMode_BUFFERED, ResponseMode: filterv3.ProcessingMode_NONE,
		Headers: []string{":method", "POST", ":path", "/v1/completions"}, Body: []byte(`{"model":"m","prompt":[1,2,3]}`),
	})
	fmt.Println(c.Destination, c.Metadata, err)
	// Output: 10.0.0.7:8000 10.0.0.7:8000 <nil>
}
