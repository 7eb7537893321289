package report

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"epp.internal/epp"
	"epp.internal/epp/fleet"
	"epp.internal/epp/kvindex"
	"epp.internal/epp/report/wire"
)

// seedReports are reports of all kinds, one after the other.
func seedReports() []*wire.Report {
	four := 4.0
	return []*wire.Report{
		{Number: 2, SnapshotBegin: true, Events: []*wire.BlockEvent{
			{Kind: wire.BlockEvent_STORED, Names: []uint64{1, 2}, Keys: []uint64{11, 12}, BlockTokens: 16, Tier: "GPU"},
		}},
		{Number: 3, SnapshotEnd: true, Begins: 1, Models: &wire.Models{Models: []*wire.Model{{Name: "m", Parent: "b", MaxTokens: 9}}}},
		{Number: 4, Reading: &wire.Reading{Number: 1, AgeMs: 20, Waiting: &four, Adapters: []string{"a"}}, Gpu: &wire.GPU{Temperature: &four, Xids: []uint32{79}}},
		{Number: 7, Events: []*wire.BlockEvent{
			{Kind: wire.BlockEvent_STORED, Names: []uint64{3}, Keys: []uint64{13}, Parent: 2, BlockTokens: 16, Tier: "GPU"},
			{Kind: wire.BlockEvent_REMOVED, Names: []uint64{1, 9}, Tier: "GPU"},
		}, Incomplete: true},
		{Number: 8, Reading: &wire.Reading{Number: 5, Failed: "refused", Refused: true}, Probe: &wire.Probe{Number: 1, Failed: "late"}, Values: &wire.Values{Values: map[string]string{"k": "v"}}},
		{Number: 9, SnapshotBegin: true, SnapshotEnd: true, Events: []*wire.BlockEvent{{Kind: wire.BlockEvent_STORED, Names: []uint64{1}, Keys: []uint64{}, Parent: 1}}},
	}
}

// frames puts reports one after the other, each after its length in two bytes.
func frames(reports ...*wire.Report) (out []byte) {
	for _, r := range reports {
		b, err := proto.Marshal(r)
		if err != nil {
			panic(err)
		}
		out = append(append(out, byte(len(b)>>8), byte(len(b))), b...)
	}
	return out
}

// Whatever a stream brings, nothing panics, the index keeps its bound, and the
// endpoint beside is as it was.
func FuzzReports(f *testing.F) {
	all := seedReports()
	f.Add(frames(all...))
	for _, r := range all {
		f.Add(frames(r, r))
	}
	f.Add([]byte{0, 3, 1, 2, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		x := kvindex.New(kvindex.Options{MaxBytes: kvindex.MinMaxBytes})
		table := fleet.New(fleet.Options{Index: x})
		m, other := table.Join(epp.Endpoint{Name: "a"}), table.Join(epp.Endpoint{Name: "b"})
		other.Apply(time.Unix(0, 0), []epp.BlockEvent{{Kind: epp.BlockStored, Hashes: []uint64{1}, Keys: []uint64{11}, BlockTokens: 16}})
		other.Incomplete(time.Unix(0, 0), false)
		before := table.Snapshot()[1]

		now := time.Unix(1000, 0)
		in := &intake{interval: DefaultInterval, probes: true, feed: Feed{
			Readings: m, Models: m.Models, Blocks: m, Health: m, Values: func(map[string]string) {},
		}}
		in.open(now)
		orders := 0
		for len(data) >= 2 {
			n := min(int(data[0])<<8|int(data[1]), len(data)-2)
			var r wire.Report
			if proto.Unmarshal(data[2:2+n], &r) != nil {
				return // gRPC ends the stream
			}
			data = data[2+n:]
			now = now.Add(time.Millisecond)
			order, late, _, err := in.take(now, &r)
			if err != nil {
				return
			}
			if late && order {
				t.Error("a late report orders a snapshot")
			}
			if order {
				orders++
			}
			if in.whole && in.filling {
				t.Error("a snapshot is there, and still comes")
			}
			if s := table.Snapshot()[0].Signals; !in.whole && !s.Incomplete {
				t.Error("blocks are missing, and the endpoint counts as complete")
			}
		}
		if got := x.Bytes(); got > 2*kvindex.MinMaxBytes {
			t.Errorf("the index has %d bytes", got)
		}
		after := table.Snapshot()[1]
		if after.Blocks != before.Blocks || after.Signals != before.Signals {
			t.Errorf("the endpoint beside was %+v and is %+v", before, after)
		}
		out := make([]uint32, 2)
		if x.Match([]uint64{11}, out); out[1] != 1 {
			t.Errorf("the endpoint beside holds %d blocks; want 1", out[1])
		}
	})
}
