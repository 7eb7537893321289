// Package extproc is the picker behind Envoy, or any gateway that speaks its
// ext_proc protocol: the first and the last step of a request's way, where a
// gateway carries the request. It is told the request's headers and body, asks
// the picker where it runs, names the endpoint by the endpoint-picker protocol
// of Gateway API Inference Extension, and follows the answer as far as the
// gateway shows it.
//
//	s := extproc.NewServer(extproc.Options{Pick: extproc.By(pk), Ready: synced})
//	go s.Serve(listener)        // :9002
//	go s.ServeHealth(listener2) // :9003
//	…
//	err := s.Shutdown(ctx)
//
// # Body modes
//
// The gateway announces in a stream's first message how it sends bodies, and is
// answered in kind. Of a request's body, which must be whole before the route is
// chosen:
//
//	BUFFERED              headers are let through at once, the body's answer names the endpoint
//	FULL_DUPLEX_STREAMED  headers wait for the body's end, then the body is sent back
//	NONE                  picked by load, on the headers
//	STREAMED, BUFFERED_PARTIAL, others: refused with 500, which says what to use
//
// A request without a body is picked by load on its headers in every mode, and
// so is a path whose bodies we don't know. A gateway that announces nothing (an
// old Envoy) has FULL_DUPLEX_STREAMED where a body comes before we have answered
// the headers; after 50 ms without one it has BUFFERED. That is a guess, and a
// client that is slow to send defeats it: such a gateway should buffer.
//
// What is seen of the answer, and what it means for the booking
// ([picker.Sight]):
//
//	response body mode       request body mode     first token, usage  the end
//	STREAMED, BUFFERED, FDS  any                   yes                 with its last byte
//	NONE                     BUFFERED, NONE        no                  with the stream
//	NONE                     FULL_DUPLEX_STREAMED  no                  no: Envoy ends the stream at the headers
//	BUFFERED_PARTIAL         any                   no                  no
//
// The response headers must be sent (response_header_mode SEND, the default):
// where the bytes don't pass, a stream that ends without them counts as a client
// that went away.
//
// # What holds for every stream
//
//   - Carried.End is called exactly once after every Pick that returned no error.
//   - The destination is set with overwrite, as header and as metadata, with the
//     same value; the client's own control headers are removed, and in BUFFERED
//     before we decide, so that nobody obeys them if we don't live to decide.
//   - A stream that ends while the request's body comes is a client that went away.
//     One whose request the gateway itself refuses shows that answer's headers first.
//   - A message out of order ends the stream with InvalidArgument; nothing
//     panics, and no request is answered twice.
//   - Request and response bodies go back byte for byte, but for the model's name
//     where a rule replaces it; a piece of an answer is never held back.
//   - State belongs to the stream's goroutine; nothing a client sends is a key.
//
// A gateway's own answer (a limit of its own, an earlier filter's refusal) comes
// as response headers without a request that we decided: it gets its requestID
// and passes.
package extproc
