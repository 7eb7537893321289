package proxy

import (
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"

	"epp.internal/epp/picker"
)

// idHeader carries the requestID, to the client and to the endpoint.
const idHeader = "X-Epp-Request-Id" // picker.IDHeader in net/http's form

// hopHeaders concern one connection, not the message. They are passed on in
// neither direction. Source: RFC 9110 §7.6.1; Keep-Alive and Proxy-Connection
// by custom.
var hopHeaders = set("Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization",
	"Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade")

// ownHeaders are set anew for the endpoint or were already obeyed. Expect was
// met when the body was read; a length is set from the body we send.
var ownHeaders = set("Content-Length", "Expect", "Host", idHeader)

func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[textproto.CanonicalMIMEHeaderKey(n)] = true
	}
	return m
}

// requestHeader returns what of a client's header goes to an endpoint. The
// values are shared with in.
func requestHeader(in http.Header, remoteAddress, id string) http.Header {
	out := make(http.Header, len(in)+3)
	for name, values := range in {
		if !hopHeaders[name] && !ownHeaders[name] && !picker.IsControl(name) {
			out[name] = values
		}
	}
	dropConnectionListed(out, in)
	if host, _, err := net.SplitHostPort(remoteAddress); err == nil {
		before := in["X-Forwarded-For"]
		out["X-Forwarded-For"] = []string{strings.Join(append(before[:len(before):len(before)], host), ", ")}
	}
	if _, ok := out["User-Agent"]; !ok {
		out["User-Agent"] = []string{""} // else net/http puts its own
	}
	out[idHeader] = []string{id}
	return out
}

// copyHeader adds to out what of an endpoint's header or trailer goes to the
// client. Addresses of the endpoint itself are made relative, and a missing
// Content-Type stays missing.
func copyHeader(out, in http.Header, address string) {
	for name, values := range in {
		if !hopHeaders[name] && name != idHeader {
			out[name] = values
		}
	}
	dropConnectionListed(out, in)
	for _, name := range []string{"Location", "Content-Location"} {
		if v := in.Get(name); v != "" {
			out[name] = []string{relative(v, address)}
		}
	}
}

// dropConnectionListed removes from out what in's Connection header lists, but
// for the requestID and the Connection header of our own. Where an endpoint's
// list holds "close" too, net/http has removed it before anybody could read it,
// and the other headers that it names pass.
func dropConnectionListed(out, in http.Header) {
	for _, list := range in["Connection"] {
		for name := range strings.SplitSeq(list, ",") {
			name = textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name))
			if name != idHeader && name != "Connection" {
				delete(out, name)
			}
		}
	}
}

// relative returns location without scheme and host where those are address:
// an engine that redirects names itself, and a client must come back to us.
func relative(location, address string) string {
	u, err := url.Parse(location)
	if err != nil || u.Host == "" || u.Host != address && u.Host+":80" != address {
		return location
	}
	u.Scheme, u.Host, u.User = "", "", nil
	if u.Path == "" {
		u.Path = "/"
	}
	return u.String()
}
