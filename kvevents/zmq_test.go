package kvevents

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
)

// Another implementation's sockets over TCP: a publisher and a ROUTER of zmq4,
// which send what a real engine sent. The first half of the history comes by
// replay, as it was captured, the second half live, and its tenth batch is lost
// on the way: all events are applied in the order in which they happened.
func TestZMQSockets(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	pub := zmq4.NewPub(ctx)
	router := zmq4.NewRouter(ctx)
	for _, s := range []zmq4.Socket{pub, router} {
		if err := s.Listen("tcp://127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	history := capture(t, "lora-evict")
	half := len(history) / 2
	questions := make(chan uint64, 8)
	served := make(chan struct{})
	go func() {
		defer close(served)
		for sent := half; ; sent = len(history) {
			m, err := router.Recv()
			if err != nil {
				return
			}
			from := binary.BigEndian.Uint64(m.Frames[2])
			questions <- from
			for _, f := range history[from:sent] {
				router.SendMulti(zmq4.NewMsgFrom(append([][]byte{m.Frames[0], nil}, unhex(t, f.Frames)...)...))
			}
			router.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, nil, []byte("\xff\xff\xff\xff\xff\xff\xff\xff"), nil))
		}
	}()

	in, c := newSink(), new(counts)
	sub := Subscriber{Address: pub.Addr().String(), Replay: router.Addr().String(), Sink: in, Hooks: c.hooks()}
	ended := make(chan error, 1)
	subCtx, stop := context.WithCancel(ctx)
	go func() { ended <- sub.Run(subCtx) }()

	<-questions
	for len(pub.(zmq4.Topics).Topics()) == 0 {
		runtime.Gosched() // zmq4 does not tell when a subscription comes
	}
	for i, f := range history[half:] {
		if i == 9 {
			continue
		}
		if err := pub.SendMulti(zmq4.NewMsgFrom(unhex(t, f.Frames)...)); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	var b Batch
	for _, f := range history {
		if err := Decode(f.payload(t), &b); err != nil {
			t.Fatal(err)
		}
		for _, e := range b.Events {
			want = append(want, fmt.Sprintf("%s %v", strings.ToLower(strings.TrimPrefix(e.Kind.String(), "Block")), e.Hashes))
		}
	}
	var got []string
	for len(got) < len(want) {
		<-in.told
		in.mu.Lock()
		got = got[:0]
		for _, line := range in.log {
			if !strings.HasPrefix(line, "incomplete") {
				got = append(got, line)
			}
		}
		in.mu.Unlock()
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("told  %v\nwant %v", got, want)
	}
	if from := <-questions; from != uint64(half+9) || c.gaps != 1 {
		t.Errorf("asked from %d, gaps = %d; want %d, 1", from, c.gaps, half+9)
	}
	stop()
	<-ended
	cancel()
	pub.Close()
	router.Close()
	<-served
}

func unhex(t testing.TB, frames []string) (out [][]byte) {
	for _, f := range frames {
		b, err := hex.DecodeString(f)
		if err != nil {
			t.Error(err)
		}
		out = append(out, b)
	}
	return out
}

// The captured answers of a real replay socket are what replayFrames reads: the
// same batches that came live, and an end.
func TestReplayCapture(t *testing.T) {
	text, err := os.ReadFile("testdata/frames/replay-base.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	live := capture(t, "base")
	for i, line := range lines {
		var frames []string
		if err := json.Unmarshal([]byte(line), &frames); err != nil {
			t.Fatal(err)
		}
		m := message{frames: unhex(t, frames), count: len(frames)}
		seq, payload, end, ok := replayFrames(&m)
		if i == len(lines)-1 {
			if !end || !ok {
				t.Errorf("last answer %q: end %v, ok %v; want the end", frames, end, ok)
			}
			continue
		}
		if !ok || end || seq != live[i].Seq || hex.EncodeToString(payload) != live[i].Frames[2] {
			t.Errorf("answer %d: seq %d, end %v, ok %v; want batch %d as it came live", i, seq, end, ok, live[i].Seq)
		}
	}
}

// BenchmarkMessages is the whole way of a live message of 16 blocks: TCP, ZMTP,
// sequence, decoding, a sink that does nothing.
func BenchmarkMessages(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	payload := sixteen(b)
	const burst = 256
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		z, err := accept(c, "PUB")
		if err != nil {
			return
		}
		var m message
		z.read(&m)
		var out []byte
		for seq := uint64(0); ; {
			out = out[:0]
			for range burst {
				out = appendFrame(out, flagMore, []byte("kv@10.0.0.7@m"))
				out = appendFrame(out, flagMore, binary.BigEndian.AppendUint64(nil, seq))
				out = appendFrame(out, 0, payload)
				seq++
			}
			if _, err := c.Write(out); err != nil {
				return
			}
		}
	}()
	ctx, stop := context.WithCancel(b.Context())
	done := make(chan struct{})
	n := 0
	sub := Subscriber{Address: l.Addr().String(), Sink: discard{}, Hooks: Hooks{Message: func() {
		if n++; n == b.N {
			close(done)
		}
	}}}
	ended := make(chan error, 1)
	b.ReportAllocs()
	b.SetBytes(int64(len(payload)))
	b.ResetTimer()
	start := time.Now()
	go func() { ended <- sub.Run(ctx) }()
	<-done
	b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "messages/s")
	b.StopTimer()
	stop()
	<-ended
}
