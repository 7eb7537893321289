package openai_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"epp.internal/epp"
	"epp.internal/epp/openai"
	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// testdata/read holds bodies and what is read of them, or the error that the
// client gets. "cmd" is a path's form: chat, completions, other.
func TestRead(t *testing.T) {
	paths := map[string]string{"chat": "/v1/chat/completions", "completions": "/v1/completions", "other": "/pooling", "embeddings": "/v1/embeddings", "rerank": "/v1/rerank", "messages": "/v1/messages"}
	datadriven.RunTest(t, "testdata/read", func(t *testing.T, d *datadriven.TestData) string {
		body := []byte(d.Input)
		if d.HasArg("raw") {
			body = []byte(unquote(t, d.Input))
		}
		b, err := openai.Read(paths[d.Cmd], body)
		var out strings.Builder
		if err != nil {
			e := epp.AsError(err)
			fmt.Fprintf(&out, "%d %s", e.Kind.HTTPStatus(), e.Reason)
			if e.Param != "" {
				fmt.Fprintf(&out, " at %s", e.Param)
			}
			fmt.Fprintf(&out, "\n%s\n", e.Message)
		}
		if b != nil && err == nil {
			fmt.Fprintf(&out, "model=%q stream=%v usage=%v salt=%q max=%d\n", b.Model, b.Stream, b.IncludeUsage, b.Salt, b.MaxTokens)
			for _, p := range b.Prompts {
				fmt.Fprintf(&out, "prompt %q %q %v opaque=%v\n", p.Text, p.Pair, p.Tokens, p.Opaque)
			}
		}
		if b != nil {
			fmt.Fprintf(&out, "as m2: %s\n", bytes.ReplaceAll(b.WithModel("m2"), []byte("\n"), []byte("⏎")))
		}
		return out.String()
	})
}

func unquote(t *testing.T, s string) string {
	var out string
	if _, err := fmt.Sscanf(s, "%q", &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// 20,000 nested brackets are refused as too deep, not by a stack that is full;
// a tree of a million values is refused as too many; a million numbers are one
// value and are read.
func TestReadIsBounded(t *testing.T) {
	deep := `{"model":"m","x":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`
	wide := `{"model":"m","x":[` + strings.Repeat(`"",`, 1_000_000) + `""]}`
	for _, c := range []struct {
		body, reason string
		kind         epp.Kind
	}{{deep, "nesting_too_deep", epp.BadRequest}, {wide, "too_many_values", epp.TooLarge}} {
		_, err := openai.Read("/v1/completions", []byte(c.body))
		if e := epp.AsError(err); e == nil || e.Kind != c.kind || e.Reason != c.reason {
			t.Errorf("got %v, want kind %v, reason %s", err, c.kind, c.reason)
		}
	}
	atLimit := `{"model":"m","x":` + strings.Repeat("[", openai.MaxDepth-1) + strings.Repeat("]", openai.MaxDepth-1) + `}`
	if _, err := openai.Read("/pooling", []byte(atLimit)); err != nil {
		t.Errorf("%d levels: %v", openai.MaxDepth, err)
	}
	numbers := `{"model":"m","prompt":[` + strings.Repeat(`7,`, 1_000_000) + `7]}`
	b, err := openai.Read("/v1/completions", []byte(numbers))
	if err != nil || len(b.Prompts) != 1 || len(b.Prompts[0].Tokens) != 1_000_001 {
		t.Errorf("a prompt of 1,000,001 token IDs: %v", err)
	}
}

// A body that is cut off anywhere is refused with a reason, never read as less.
func TestReadCutAnywhere(t *testing.T) {
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"h\u00e9\ud83d\ude00\n"}],"n":-1.5e+3,"t":[1,2,"x"],"z":{"a":true,"b":null}}`)
	if _, err := openai.Read("/v1/chat/completions", body); err != nil {
		t.Fatal(err)
	}
	for n := range body {
		_, err := openai.Read("/v1/chat/completions", body[:n])
		want := "json_cut_off"
		if n == 0 {
			want = "body_empty"
		}
		if e := epp.AsError(err); e == nil || e.Reason != want {
			t.Errorf("first %d bytes: got %v, want %s", n, err, want)
		}
	}
}

// What is navigated is what encoding/json decodes, on any JSON value.
func TestValueAgainstEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawJSON(t, 4)
		text, err := json.Marshal(map[string]any{"model": "m", "x": want})
		if err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "indent") {
			var out bytes.Buffer
			_ = json.Indent(&out, text, " ", "\t")
			text = out.Bytes()
		}
		b, err := openai.Read("/other", text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		got, err := json.Marshal(decode(b.Root.Get("x")))
		if err != nil {
			t.Fatal(err)
		}
		wantText, _ := json.Marshal(want)
		if string(got) != string(wantText) {
			t.Fatalf("got %s, want %s", got, wantText)
		}
	})
}

func drawJSON(t *rapid.T, depth int) any {
	kinds := 6
	if depth == 0 {
		kinds = 4
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		return rapid.String().Draw(t, "s")
	case 1:
		return json.Number(fmt.Sprint(rapid.Int64().Draw(t, "n")))
	case 2:
		return rapid.Bool().Draw(t, "b")
	case 3:
		return nil
	case 4:
		list := []any{}
		for range rapid.IntRange(0, 4).Draw(t, "len") {
			list = append(list, drawJSON(t, depth-1))
		}
		return list
	default:
		object := map[string]any{}
		for range rapid.IntRange(0, 20).Draw(t, "len") {
			object[rapid.StringN(0, 5, -1).Draw(t, "key")] = drawJSON(t, depth-1)
		}
		return object
	}
}

func decode(v openai.Value) any {
	switch v.Kind() {
	case openai.String:
		return v.String()
	case openai.Number:
		return json.Number(v.Number())
	case openai.Bool:
		return v.Bool()
	case openai.List:
		list := []any{}
		for i, item := range v.Items() {
			if at := v.At(i); at.Raw() != item.Raw() {
				panic("At and Items disagree")
			}
			list = append(list, decode(item))
		}
		return list
	case openai.Object:
		object := map[string]any{}
		for key, member := range v.Members() {
			if _, twice := object[key]; twice || v.Get(key).Raw() != member.Raw() {
				panic("Get and Members disagree")
			}
			object[key] = decode(member)
		}
		return object
	}
	return nil
}

// As in a Python dict, the last value of a repeated key wins and stands where
// the first one stood, in small objects and in large ones.
// A Reader that has read other turns of a conversation, texts that begin alike and
// texts cut anywhere reads a body as one that remembers nothing.
func TestReaderRemembersExactly(t *testing.T) {
	letter := rapid.SampledFrom([]string{"a", "é", `\n`, `\"`, `\\`, `\u00e9`, `\ud83d\ude00`, "\xff", "\x01", `\`, `"`, " "})
	good := rapid.SampledFrom([]string{"a", "b", "é", `\n`, `\"`, `\u00e9`, `\ud83d\ude00`})
	rapid.Check(t, func(t *rapid.T) {
		reader := openai.NewReader(64 << 10)
		head := strings.Repeat(good.Draw(t, "head"), 300)
		text := rapid.Custom(func(t *rapid.T) string {
			s := head + strings.Repeat(good.Draw(t, "letter"), rapid.IntRange(0, 900).Draw(t, "times"))
			if rapid.IntRange(0, 3).Draw(t, "bend") == 0 {
				s += letter.Draw(t, "any") + strings.Repeat("c", rapid.IntRange(0, 20).Draw(t, "more"))
			}
			return s
		})
		texts := rapid.SliceOfN(text, 1, 4).Draw(t, "texts")
		for range 6 {
			body := `{"model":"m","messages":[`
			for i, n := 0, rapid.IntRange(1, 3).Draw(t, "messages"); i < n; i++ {
				body += strings.Repeat(",", min(i, 1)) + `{"role":"user","content":"` + rapid.SampledFrom(texts).Draw(t, "text") + `"}`
			}
			body += `]}`
			if rapid.IntRange(0, 4).Draw(t, "cut") == 0 {
				body = body[:rapid.IntRange(0, len(body)).Draw(t, "at")]
			}
			got, err := reader.Read("/v1/chat/completions", []byte(body))
			want, wantErr := openai.Read("/v1/chat/completions", []byte(body))
			if fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Fatalf("%q: error %v, want %v", body, err, wantErr)
			}
			if err == nil && !reflect.DeepEqual(decode(got.Root), decode(want.Root)) {
				t.Fatalf("%q: %v, want %v", body, decode(got.Root), decode(want.Root))
			}
		}
	})
}

// A prompt of token IDs is read in one pass over its text; item by item gives the
// same, and the same prompts are refused.
func TestTokenIDsAgainstItems(t *testing.T) {
	number := rapid.SampledFrom([]string{"0", "7", "151644", "999999999", "2147483647", "2147483648", "99999999999999999999", "1.0", "2.5", "1e2", "-1", "-0", "NaN"})
	space := rapid.SampledFrom([]string{"", "", "", " ", "\n\t"})
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.Map(rapid.SliceOfN(number, 1, 8), func(list []string) string {
			for i := range list {
				list[i] = space.Draw(t, "before") + list[i] + space.Draw(t, "after")
			}
			return strings.Join(list, ",")
		}).Draw(t, "list")
		b, err := openai.Read("/v1/completions", []byte(`{"model":"m","prompt":[`+text+`]}`))
		other, otherErr := openai.Read("/other", []byte(`{"model":"m","prompt":[`+text+`]}`))
		if otherErr != nil {
			t.Fatal(otherErr)
		}
		var want []uint32
		good := true
		for _, item := range other.Root.Get("prompt").Items() {
			n, ok := item.Int()
			good = good && ok && n >= 0 && n <= 1<<31-1
			want = append(want, uint32(n))
		}
		if good != (err == nil) {
			t.Fatalf("[%s]: error %v, item by item good is %v", text, err, good)
		}
		if good && !slices.Equal(b.Prompts[0].Tokens, want) {
			t.Fatalf("[%s]: %v, want %v", text, b.Prompts[0].Tokens, want)
		}
	})
}

func TestMembersRepeated(t *testing.T) {
	for _, pad := range []int{0, 30} {
		var more strings.Builder
		for i := range pad {
			fmt.Fprintf(&more, `,"k%d":0`, i)
		}
		b, err := openai.Read("/other", []byte(`{"model":"m","a":1,"b":2,"\u0061":3`+more.String()+`}`))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for key, v := range b.Root.Members() {
			got = append(got, key+"="+v.Raw())
		}
		if want := []string{`model="m"`, "a=3", "b=2"}; !slices.Equal(got[:3], want) || len(got) != 3+pad {
			t.Errorf("got %v, want %v and %d more", got, want, pad)
		}
	}
}

func TestErrorBody(t *testing.T) {
	e := epp.Errorf(epp.NotFound, "model_unknown", "model %q is not served", "a<b>")
	e.Param, e.Err = "model", errors.New("10.0.0.7: secret")
	got := string(openai.ErrorBody(e, "r-1"))
	want := `{"error":{"message":"model \"a<b>\" is not served","type":"not_found_error","param":"model","code":"model_unknown","request_id":"r-1"}}`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	e.Param = ""
	if got := string(openai.ErrorBody(e, "")); !strings.Contains(got, `"param":null,`) || strings.Contains(got, "request_id") {
		t.Errorf("without field and ID: got %s", got)
	}
}

func TestFormOf(t *testing.T) {
	for path, want := range map[string]openai.Form{
		"/v1/chat/completions": openai.Chat, "/v1/chat/completions/": openai.Chat, "/v1/chat/completions?x=/v1/completions": openai.Chat,
		"/v1/chat/completions/render": openai.Chat, "/v1/completions": openai.Completions, "/v1/completions/render/": openai.Completions,
		"/tokenize": openai.Tokenize, "/v2/rerank": openai.Rerank, "/v1/models": openai.Other, "": openai.Other,
	} {
		if got := openai.FormOf(path); got != want {
			t.Errorf("FormOf(%q) = %v, want %v", path, got, want)
		}
	}
}

// Whatever the bytes are, Read returns a body or an error of the client's, and a
// body that has been read is JSON to encoding/json too, with another model put in.
func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"\ud83d\ude00"}]}],"stream":true}`))
	f.Add([]byte(`{"model":"a","model":5,"prompt":[[1,2.0],["x",NaN,-Infinity]]}`))
	f.Add([]byte("\uFEFF { } "))
	f.Add([]byte(`{"a":"` + "\x80" + `"}`))
	captured, _ := os.ReadFile("testdata/vllm/chat_tools.request.json")
	f.Add(captured)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/x"} {
			b, err := openai.Read(path, body)
			if err != nil {
				if k := epp.AsError(err).Kind; k != epp.BadRequest && k != epp.TooLarge {
					t.Fatalf("kind %v for %q", k, body)
				}
			}
			if b == nil {
				continue
			}
			decode(b.Root)
			again, err := openai.Read("/x", b.WithModel("x\"\n<"))
			if err != nil || again.Model != "x\"\n<" {
				t.Fatalf("with another model: %v", err)
			}
			if !strings.Contains(string(body), "N") && !strings.Contains(string(body), "I") && !strings.HasPrefix(string(body), "\uFEFF") && !json.Valid(body) {
				t.Fatalf("read what is not JSON: %q", body)
			}
		}
	})
}

// chat returns a chat body of about size bytes.
func chat(size int) []byte {
	const turn = `{"role":"user","content":"The endpoint picker scores every pod and sends the request to the one that needs the least compute.\nThe quick brown fox \"jumps\" over it."},`
	turns := size / len(turn)
	return []byte(`{"model":"llama","messages":[` + strings.Repeat(turn, turns) + `{"role":"user","content":"Why?"}],"stream":true,"temperature":0.7}`)
}

func BenchmarkRead(b *testing.B) {
	for _, size := range []int{16 << 10, 220 << 10} {
		body := chat(size)
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := openai.Read("/v1/chat/completions", body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func ExampleRead() {
	b, err := openai.Read("/v1/chat/completions", []byte(`{"model":"sql", "messages":[{"role":"user","content":"Hi"}], "top_k": 1.0}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(b.Model, b.Root.Get("messages").At(0).Get("content"))
	fmt.Println(string(b.WithModel("sql-v2")))
	// Output:
	// sql Hi
	// {"model":"sql-v2", "messages":[{"role":"user","content":"Hi"}], "top_k": 1.0}
}

// TestQuestion: what an engine is asked for a chat's tokens keeps all that may decide
// them and drops what says how it is answered.
func TestQuestion(t *testing.T) {
	b, err := openai.Read("/v1/chat/completions", []byte(`{ "temperature": 0.7, "messages":[{"role":"user","content":"a\u00e9"}], "stream":true,"model":"alias","max_tokens":7,
		"tools" : [ {"type":"function"} ],"chat_template_kwargs":{"enable_thinking":false},"user":"u","unheard_of":[1,2] }`))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"model":"tiny","messages":[{"role":"user","content":"a\u00e9"}],"tools":[ {"type":"function"} ],"chat_template_kwargs":{"enable_thinking":false},"unheard_of":[1,2]}`
	if got := string(b.Question("tiny")); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
