// Package proxy is the picker's own gateway: an OpenAI-compatible reverse proxy
// over net/http, for those who run no Envoy. It is the first and the last step
// of a request's way: it reads the whole body, asks the picker where the
// request runs, sends it there and passes the answer on as it comes.
//
// What holds for every request:
//
//   - Carried.End is called exactly once after every Pick that returned no
//     error, whatever happened in between.
//   - A request is sent at most twice, and a second time only where the first
//     endpoint refused the connection or broke it before the first byte of its
//     answer, to the next best endpoint, within a budget. net/http never sends
//     one again by itself.
//   - An answer that broke off is never ended cleanly: the client sees an error.
//   - Each byte of an answer is written and flushed before the next is read.
//   - Every answer carries x-epp-request-id; no error tells an address or a path.
//   - The client chooses no endpoint, priority or tenant: such headers are
//     dropped on the way in.
//
// The exception: a request that is no HTTP (a malformed request line, a header
// block over its bound) is answered by net/http itself, with 400 or 431 in
// plain text.
//
//	p := proxy.New(proxy.Options{Pick: proxy.By(pk), Models: models})
//	go p.Serve(listener)
//	…
//	err := p.Shutdown(ctx)
package proxy
