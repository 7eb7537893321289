package proxy_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/picker"
	"epp.internal/epp/proxy"
)

// alone is the pick of a pool of one.
type alone struct {
	address string
	body    []byte
}

func (a *alone) Target() (epp.Endpoint, []byte)         { return epp.Endpoint{Address: a.address}, a.body }
func (a *alone) Encoding() string                       { return "" }
func (a *alone) Next(picker.Outcome) bool               { return false }
func (a *alone) ResponseHeader(status int, _, _ string) { fmt.Println("the pick sees status", status) }
func (a *alone) ResponseBody(chunk []byte)              { fmt.Printf("the pick sees %s\n", chunk) }
func (a *alone) End(outcome picker.Outcome)             { fmt.Println("the pick ends:", outcome) }

// A proxy before one endpoint. With a Picker, Pick is proxy.By(pk).
func Example() {
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "an answer to %s", body)
	}))
	defer engine.Close()
	p := proxy.New(proxy.Options{
		Pick: func(_ context.Context, in picker.Incoming) (proxy.Carried, error) {
			return &alone{engine.Listener.Addr().String(), in.Body}, nil
		},
		DrainTime: time.Millisecond,
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go p.Serve(l)

	res, err := http.Post("http://"+l.Addr().String()+"/v1/completions", "application/json", strings.NewReader(`{"model":"m"}`))
	if err != nil {
		panic(err)
	}
	io.Copy(io.Discard, res.Body)
	res.Body.Close()
	p.Shutdown(context.Background())
	fmt.Println("the client got status", res.StatusCode)
	// Output:
	// the pick sees status 200
	// the pick sees an answer to {"model":"m"}
	// the pick ends: served
	// the client got status 200
}
