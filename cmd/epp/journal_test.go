package main

import (
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"epp.internal/epp"
	"epp.internal/epp/decision"
	"epp.internal/epp/trace"
)

// fullDisk, in the environment, says that this process is the one whose disk is full.
const fullDisk = "EPP_TEST_FULL_DISK"

// limitFiles lets no file of this process grow beyond so many bytes until lift is
// called: a write that would is cut there, and the next one fails, as on a disk that
// is full.
func limitFiles(t *testing.T, bytes uint64) (lift func()) {
	t.Helper()
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	low := was
	low.Cur = bytes
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &low); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
			t.Error(err)
		}
	}
}

// refusal is a decision that is short to write.
func refusal(by *decision.Settings) *decision.Record {
	return &decision.Record{
		RequestID: "r", Attempt: 1, Settings: by, PromptTokens: 10, TokenSource: epp.LocalTokens,
		At: time.Unix(1_700_000_000, 0), Chosen: -1, RunnerUp: -1, Refused: "pool_empty",
	}
}

// TestJournalComesBack: the disk is full after each possible byte of the first lines
// in turn, for three minutes. The file is tried again all that time, one warning says
// that it fails, and one line that it is back and what was lost. What is written is
// whole but for one cut line. The limit is a whole process's, so it is another one's.
func TestJournalComesBack(t *testing.T) {
	if os.Getenv(fullDisk) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestJournalComesBack$")
		cmd.Env = append(os.Environ(), fullDisk+"=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v:\n%s", err, out)
		}
		return
	}
	signal.Ignore(syscall.SIGXFSZ) // which the kernel sends beside the error
	settings := decision.Defaults()
	head, err := decision.AppendSettingsLine(nil, settings)
	if err != nil {
		t.Fatal(err)
	}
	one, err := decision.AppendDecisionLine(nil, refusal(settings), nil)
	if err != nil {
		t.Fatal(err)
	}
	for limit := range len(head) + 2*len(one) {
		path := filepath.Join(t.TempDir(), "decisions.jsonl")
		synctest.Test(t, func(t *testing.T) { interrupt(t, path, settings, limit) })
	}
}

// interrupt writes two decisions with the given limit, two more three minutes later,
// and two when the disk has had room again for as long as a try may take.
func interrupt(t *testing.T, path string, settings *decision.Settings, limit int) {
	lift := limitFiles(t, uint64(limit))
	var log logLines
	j, err := openJournal(path, 1<<20, slog.New(slog.NewJSONHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	write := func() {
		for range 2 {
			j.decided(refusal(settings), nil)
			synctest.Wait()
		}
	}
	write()
	time.Sleep(3 * time.Minute)
	write()
	lift()
	time.Sleep(journalRetryMost)
	synctest.Wait()
	write()
	if err := j.close(); err != nil {
		t.Errorf("limit %d: %v", limit, err)
	}
	lost := int(j.lost())
	n, err := replayed(t, path)
	if err != nil || n.Cut > 1 || n.Decisions+lost != 6 || n.Decisions < 2 || lost < 2 {
		t.Errorf("limit %d: %+v and %d lost, %v: want 6 decisions, the last two of them in the file", limit, n, lost, err)
	}
	failed, back := log.find("the decision log cannot be written: decisions are lost until it can", ""), log.find("the decision log is written again", "")
	if len(failed) != 1 || len(back) != 1 || back[0]["decisionsLost"] != float64(lost) || strings.Count(log.String(), "\n") != 2 {
		t.Errorf("limit %d: %d lost, log:\n%s", limit, lost, &log)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if tr, err := trace.Read(path, f); err != nil || len(tr.Requests) != n.Decisions || tr.Cut != n.Cut {
		t.Errorf("limit %d: as a trace: %v, want %d requests and %d cut lines", limit, err, n.Decisions, n.Cut)
	}
}

// TestJournalTurnsAgain: a full file that cannot become FILE.1, where a folder is in
// the way, is an outage; it ends when the way is free. One that comes and goes is tried
// less and less often. What fails to the end is the error of the close.
func TestJournalTurnsAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "decisions.jsonl")
	obstacle := filepath.Join(path+".1", "x")
	block := func() {
		if err := os.RemoveAll(path + ".1"); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(obstacle, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		settings := decision.Defaults()
		var log logLines
		j, err := openJournal(path, 1<<10, slog.New(slog.NewJSONHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		fill := func() {
			for range 8 {
				j.decided(refusal(settings), nil)
				synctest.Wait()
			}
		}
		for outage, wait := range []time.Duration{journalRetry, 2 * journalRetry, 4 * journalRetry} {
			block()
			fill()
			lost := j.lost()
			if lost == 0 {
				t.Fatalf("outage %d: nothing is lost", outage)
			}
			if err := os.RemoveAll(path + ".1"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(wait - time.Nanosecond)
			synctest.Wait()
			if n := len(log.find("the decision log is written again", "")); n != outage {
				t.Fatalf("outage %d: back %d times before %v have passed", outage, n, wait)
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if n := len(log.find("the decision log is written again", "")); n != outage+1 {
				t.Fatalf("outage %d: back %d times after %v: %s", outage, n, wait, &log)
			}
		}
		time.Sleep(journalRetryMost)
		block()
		fill()
		if err := j.close(); err == nil || !strings.Contains(err.Error(), "log.decisions: rename ") {
			t.Errorf("closed: %v", err)
		}
		if _, err := replayed(t, path); err != nil {
			t.Error(err)
		}
	})
}
