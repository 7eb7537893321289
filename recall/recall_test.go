package recall_test

import (
	"fmt"
	"sync"
	"testing"

	"epp.internal/epp/recall"
	"pgregory.net/rapid"
)

func is(want string) func(*string) bool { return func(s *string) bool { return *s == want } }

// Whatever is put and sought, what is found is what was put last under its hash
// while nothing lay there, and the bytes stay in bounds.
func TestCacheAgainstMap(t *testing.T) {
	const bound = 16 << 10
	rapid.Check(t, func(t *rapid.T) {
		c := recall.New[string](bound)
		put := map[uint64]string{} // all that was ever put: the cache may forget, not invent
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			hash := rapid.Uint64Range(0, 60).Draw(t, "hash")
			text := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "text")
			if rapid.Bool().Draw(t, "put") {
				if _, taken := c.Find(hash, is("")); !taken {
					put[hash] = text
				}
				c.Put(hash, text, rapid.IntRange(0, bound/8).Draw(t, "bytes"))
			}
			found, taken := c.Find(hash, is(text))
			if found != nil && (!taken || *found != text || put[hash] != text) {
				t.Fatalf("hash %d: found %q, put %q", hash, *found, put[hash])
			}
			if _, bytes := c.Usage(); bytes > bound {
				t.Fatalf("%d bytes are held, bound %d", bytes, bound)
			}
		}
	})
}

// What was found since it came is passed over once; what was not is forgotten.
func TestCacheForgetsUnusedFirst(t *testing.T) {
	c := recall.New[string](8 * 3 * 1000) // a shard has room for two values of 1,000 and their overhead
	const a, b, d = 0, 8, 16              // hashes of one shard
	c.Put(a, "a", 1000)
	c.Put(b, "b", 1000)
	if found, _ := c.Find(a, is("a")); found == nil {
		t.Fatal("a is not there")
	}
	c.Put(d, "d", 1000)
	for hash, want := range map[uint64]bool{a: true, b: false, d: true} {
		if _, taken := c.Find(hash, is("")); taken != want {
			t.Errorf("hash %d: there is %v, want %v", hash, taken, want)
		}
	}
	c.Put(24, "large", 3000)
	if _, taken := c.Find(24, is("large")); taken {
		t.Error("a value larger than a shard was kept")
	}
}

func TestCacheManyGoroutines(t *testing.T) {
	c := recall.New[string](8 << 10)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range uint64(2000) {
				text := fmt.Sprint(i % 100)
				if found, _ := c.Find(i%100, is(text)); found != nil && *found != text {
					t.Errorf("found %q, want %q", *found, text)
				}
				c.Put(i%100, text, len(text))
			}
		})
	}
	wg.Wait()
}

func ExampleCache() {
	c := recall.New[string](1 << 20)
	c.Put(7, "text", len("text"))
	found, taken := c.Find(7, is("text"))
	fmt.Println(*found, taken)
	found, taken = c.Find(7, is("another text of the same hash"))
	fmt.Println(found, taken)
	// Output:
	// text true
	// <nil> true
}
