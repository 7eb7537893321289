package kvevents

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// The greeting of ZMTP 3.0, 64 bytes from each side:
//
//	ff 00×8 7f        signature
//	03 00             version
//	"NULL" 00×16      mechanism, 20 bytes
//	00                as-server
//	00×31             filler
//
// We say 3.0 on purpose: to a peer of 3.0 every libzmq reads a subscription as
// a message, to one of 3.1 as a command.
// Source: https://rfc.zeromq.org/spec/23/
const (
	greetingSize  = 64
	signatureSize = 10
	mechanismAt   = 12
	mechanismSize = 20
)

// A frame begins with a byte of flags, and its size in 1 byte or, where long is
// set, in 8, big-endian.
const (
	flagMore    = 0x01 // further frames of the message follow
	flagLong    = 0x02 // the size has 8 bytes
	flagCommand = 0x04 // the frame is a command
	flagUnknown = 0xf8
)

const (
	// maxFrames bounds the frames of one message; a replay's answer has 4.
	maxFrames = 8
	// maxCommand bounds a command's size: READY holds a few properties.
	maxCommand = 4 << 10
	// maxHead bounds the bytes of a message beside its payload: topics are short.
	maxHead = 4 << 10
	// readBuffer holds some dozens of messages, so that a system call brings many.
	readBuffer = 64 << 10
	// keepBuffer is the largest message buffer that is kept for the next message.
	keepBuffer = 1 << 20
)

// The types of socket that we are, and those that may answer.
const (
	socketSub    = "SUB"
	socketDealer = "DEALER"
)

// message is one message of several frames. Its frames are valid until the
// next read into it.
type message struct {
	frames [][]byte
	buf    []byte
	// count is how many frames the message had, those not kept included.
	count int
	// tooLarge is true where the message was over its bound: the frames read
	// until then are there, the last of them is empty.
	tooLarge bool
}

// conn is our end of a ZMTP connection. It has no goroutine; reads and writes
// block as the connection does, and Close ends them.
type conn struct {
	net net.Conn
	r   *bufio.Reader
}

func newConn(c net.Conn) *conn {
	return &conn{net: c, r: bufio.NewReaderSize(c, readBuffer)}
}

// open makes the greeting and the handshake over c, as a socket of type typ,
// and has finished by deadline. It does not close c.
func open(c net.Conn, typ, identity string, deadline time.Time) (*conn, error) {
	if err := c.SetDeadline(deadline); err != nil {
		return nil, err
	}
	z := newConn(c)
	// A synchronous pipe needs both ends to write before they read.
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(greeting())
		wrote <- err
	}()
	err := z.readGreeting()
	if err != nil {
		c.SetDeadline(time.Unix(1, 0)) // ends the write
	}
	if werr := <-wrote; err == nil {
		err = werr
	}
	if err != nil {
		return nil, fmt.Errorf("zmtp greeting: %w", err)
	}
	if err := z.handshake(typ, identity); err != nil {
		return nil, fmt.Errorf("zmtp handshake: %w", err)
	}
	return z, c.SetDeadline(time.Time{})
}

// greeting returns our greeting.
func greeting() []byte {
	g := make([]byte, greetingSize)
	g[0], g[9], g[10] = 0xff, 0x7f, 3
	copy(g[mechanismAt:], "NULL")
	return g
}

// readGreeting reads and checks the peer's.
func (z *conn) readGreeting() error {
	var g [greetingSize]byte
	if _, err := io.ReadFull(z.r, g[:signatureSize+1]); err != nil {
		return err
	}
	switch {
	case g[0] != 0xff || g[9] != 0x7f:
		return fmt.Errorf("signature %x, want ff…7f: not a ZMQ socket", g[:signatureSize])
	case g[10] < 3:
		return fmt.Errorf("version %d, want 3", g[10])
	}
	if _, err := io.ReadFull(z.r, g[signatureSize+1:]); err != nil {
		return err
	}
	mechanism := bytes.TrimRight(g[mechanismAt:mechanismAt+mechanismSize], "\x00")
	if string(mechanism) != "NULL" {
		return fmt.Errorf("mechanism %q, want \"NULL\"", mechanism)
	}
	return nil
}

// handshake exchanges READY commands:
//
//	05 "READY"  name size, name, value size in 4 bytes, value  …
func (z *conn) handshake(typ, identity string) error {
	ready := append([]byte{5}, "READY"...)
	ready = appendProperty(ready, "Socket-Type", typ)
	if typ == socketDealer {
		ready = appendProperty(ready, "Identity", identity)
	}
	wrote := make(chan error, 1)
	go func() { wrote <- z.write(flagCommand, ready) }()
	err := z.readReady(typ)
	if err != nil {
		z.net.SetDeadline(time.Unix(1, 0))
	}
	if werr := <-wrote; err == nil {
		err = werr
	}
	return err
}

// appendProperty appends one property of a READY command.
func appendProperty(b []byte, name, value string) []byte {
	b = append(append(b, byte(len(name))), name...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(value)))
	return append(b, value...)
}

// readReady reads the peer's READY and checks that its socket fits ours.
func (z *conn) readReady(typ string) error {
	flags, size, err := z.header()
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 || size > maxCommand {
		return fmt.Errorf("frame with flags %#x, size %d, want READY", flags, size)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(z.r, body); err != nil {
		return err
	}
	name, rest := command(body)
	if name != "READY" {
		return fmt.Errorf("command %q, want READY: %q", name, rest)
	}
	peer, err := socketType(rest)
	if err != nil {
		return err
	}
	switch {
	case typ == socketSub && (peer == "PUB" || peer == "XPUB"),
		typ == socketDealer && (peer == "ROUTER" || peer == "REP" || peer == "DEALER"):
		return nil
	}
	return fmt.Errorf("peer is a %q, which does not speak to a %s", peer, typ)
}

// command splits a command's body into its name and the rest.
func command(body []byte) (name string, rest []byte) {
	if len(body) == 0 || int(body[0]) > len(body)-1 {
		return "", nil
	}
	n := 1 + int(body[0])
	return string(body[1:n]), body[n:]
}

// socketType finds the Socket-Type among the properties of a READY command.
func socketType(p []byte) (string, error) {
	for len(p) > 0 {
		n := 1 + int(p[0])
		if len(p) < n+4 {
			break
		}
		name := p[1:n]
		size := int64(binary.BigEndian.Uint32(p[n:]))
		p = p[n+4:]
		if size > int64(len(p)) {
			break
		}
		if bytes.EqualFold(name, []byte("Socket-Type")) {
			return string(p[:size]), nil
		}
		p = p[size:]
	}
	return "", errors.New("READY without a Socket-Type")
}

// write sends one frame.
func (z *conn) write(flags byte, body []byte) error {
	_, err := z.net.Write(appendFrame(nil, flags, body))
	return err
}

// appendFrame appends one frame to b.
func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) > 0xff {
		b = append(b, flags|flagLong)
		b = binary.BigEndian.AppendUint64(b, uint64(len(body)))
	} else {
		b = append(b, flags, byte(len(body)))
	}
	return append(b, body...)
}

// subscribe asks for all messages whose topic begins with topic.
func (z *conn) subscribe(topic string) error {
	return z.write(0, append([]byte{1}, topic...))
}

// ask sends a replay's request: an empty frame, as a REQ socket would, and the
// number from which on batches are wanted, 8 bytes big-endian.
func (z *conn) ask(from uint64) error {
	b := appendFrame(nil, flagMore, nil)
	b = appendFrame(b, 0, binary.BigEndian.AppendUint64(nil, from))
	_, err := z.net.Write(b)
	return err
}

// header reads a frame's flags and size.
func (z *conn) header() (flags byte, size uint64, err error) {
	if flags, err = z.r.ReadByte(); err != nil {
		return 0, 0, err
	}
	if flags&flagUnknown != 0 {
		return 0, 0, fmt.Errorf("frame with flags %#x: not ZMTP", flags)
	}
	if flags&flagLong == 0 {
		short, err := z.r.ReadByte()
		return flags, uint64(short), err
	}
	var long [8]byte
	if _, err := io.ReadFull(z.r, long[:]); err != nil {
		return 0, 0, err
	}
	size = binary.BigEndian.Uint64(long[:])
	if size >= 1<<63 {
		return 0, 0, fmt.Errorf("frame of %d bytes: not ZMTP", size)
	}
	return flags, size, nil
}

// read reads the next message into m, answering PINGs on the way. A message of
// too many bytes or frames is read to its end without being kept. An error ends
// the connection.
func (z *conn) read(m *message) error {
	if cap(m.buf) > keepBuffer {
		m.buf = nil
	}
	m.buf, m.frames, m.count, m.tooLarge = m.buf[:0], m.frames[:0], 0, false
	for {
		flags, size, err := z.header()
		if err != nil {
			return err
		}
		if flags&flagCommand != 0 {
			if err := z.readCommand(size); err != nil {
				return err
			}
			continue
		}
		if err := z.readFrame(m, size); err != nil {
			return err
		}
		if flags&flagMore == 0 {
			return nil
		}
	}
}

// readFrame reads one frame's body into m, or past it.
func (z *conn) readFrame(m *message, size uint64) error {
	m.count++
	if size > uint64(MaxPayload+maxHead-len(m.buf)) {
		m.tooLarge = true
	}
	if m.tooLarge || m.count > maxFrames {
		if m.tooLarge && len(m.frames) < maxFrames {
			m.frames = append(m.frames, nil)
		}
		_, err := z.r.Discard(int(size))
		return err
	}
	start := len(m.buf)
	if err := m.fill(z.r, int(size)); err != nil {
		return err
	}
	m.frames = append(m.frames, m.buf[start:len(m.buf):len(m.buf)])
	return nil
}

// fill appends n bytes of r to m.buf. It grows by what has come, not by what
// was announced; frames that were cut from the old memory keep it.
func (m *message) fill(r *bufio.Reader, n int) error {
	for n > 0 {
		part := min(n, readBuffer)
		start := len(m.buf)
		if cap(m.buf)-start < part {
			m.buf = append(make([]byte, 0, 2*(start+part)), m.buf...)
		}
		m.buf = m.buf[:start+part]
		if _, err := io.ReadFull(r, m.buf[start:]); err != nil {
			return err
		}
		n -= part
	}
	return nil
}

// readCommand reads one command and answers it where it is a PING:
//
//	04 "PING" ttl(2) context  ->  04 "PONG" context
func (z *conn) readCommand(size uint64) error {
	if size > maxCommand {
		return fmt.Errorf("command of %d bytes, at most %d", size, maxCommand)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(z.r, body); err != nil {
		return err
	}
	name, rest := command(body)
	switch {
	case name == "PING" && len(rest) >= 2:
		return z.write(flagCommand, append([]byte("\x04PONG"), rest[2:]...))
	case name == "ERROR":
		return fmt.Errorf("peer says %q", rest)
	}
	return nil
}
