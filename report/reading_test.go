package report

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"epp.internal/epp"
	"epp.internal/epp/report/wire"
)

// fill gives every field of a reading a value of its own, or fails: a kind of field
// that is new has to have its place here and on the wire.
func fill(t *testing.T, to reflect.Value) {
	t.Helper()
	for i := range to.NumField() {
		switch f, n := to.Field(i), i+1; v := f.Addr().Interface().(type) {
		case *epp.Gauge:
			*v = epp.Known(float64(n) / 16)
		case *int:
			*v = n
		case *[]int:
			*v = []int{n}
		case *[]string:
			*v = []string{strings.Repeat("a", n)}
		case *bool:
			*v = true
		default:
			t.Fatalf("%s: no value for a %s", to.Type().Field(i).Name, f.Type())
		}
	}
}

// TestAllFieldsTravel: each field of a reading of the page, and of the accelerators,
// comes out of a report as it went in; unknown stays unknown. A field that the form
// of reports does not have fails by its name.
func TestAllFieldsTravel(t *testing.T) {
	travel := func(from, to proto.Message) {
		t.Helper()
		data, err := proto.Marshal(from)
		if err == nil {
			err = proto.Unmarshal(data, to)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var l, empty epp.Load
	fill(t, reflect.ValueOf(&l).Elem())
	for _, want := range []epp.Load{l, empty} {
		var r wire.Reading
		travel(ReadingOf(7, &want, nil), &r)
		same(t, want, believed(loadOf(&r)))
	}
	var g, none epp.GPU
	fill(t, reflect.ValueOf(&g).Elem())
	for _, want := range []epp.GPU{g, none} {
		var r wire.GPU
		travel(GPUOf(want), &r)
		same(t, want, believedGPU(gpuOf(&r)))
	}
}

// same compares two structs field by field.
func same(t *testing.T, want, got any) {
	t.Helper()
	w, g := reflect.ValueOf(want), reflect.ValueOf(got)
	for i := range w.NumField() {
		if name := w.Type().Field(i).Name; !reflect.DeepEqual(w.Field(i).Interface(), g.Field(i).Interface()) {
			t.Errorf("%s: %v comes out as %v", name, w.Field(i), g.Field(i))
		}
	}
}

// TestAbsurdReports: values that no engine has are unknown, as on a page; a number
// that can't be the stream's ends it, and is not counted as so many missed.
func TestAbsurdReports(t *testing.T) {
	h := &heard{}
	in := &intake{interval: time.Second, feed: Feed{Blocks: h}}
	in.open(time.Unix(0, 0))
	for number, ok := range map[uint64]bool{2: true, 1 << 20: true, 1<<21 + 2: false, math.MaxUint64: false} {
		in.next = 2
		if _, _, missed, err := in.take(time.Unix(1, 0), &wire.Report{Number: number}); (err == nil) != ok || !ok && missed != 0 {
			t.Errorf("report %d: %d missed, %v", number, missed, err)
		}
	}
	absurd := 1e300
	r := &wire.Reading{Waiting: &absurd, Running: &absurd, KvUsage: &absurd, PromptTokens: &absurd, CachedTokens: &absurd, FirstTokenSeconds: &absurd}
	if got := believed(loadOf(r)); !reflect.DeepEqual(got, epp.Load{}) {
		t.Errorf("%+v", got)
	}
	g := &wire.GPU{Utilization: &absurd, Memory: &absurd, Temperature: &absurd, DoubleBitErrors: &absurd}
	if got := believedGPU(gpuOf(g)); !reflect.DeepEqual(got, epp.GPU{}) {
		t.Errorf("%+v", got)
	}
}
