package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"epp.internal/epp/picker"
)

var levels = map[string]slog.Level{
	"error": slog.LevelError, "warn": slog.LevelWarn, "info": slog.LevelInfo, "debug": slog.LevelDebug, "trace": picker.LevelTrace,
}

// newLog returns a JSON log at the level that the flag says, else EPP_LOG_LEVEL,
// else the configuration.
func newLog(w io.Writer, flag, configured string) (*slog.Logger, error) {
	source, name := "--log-level", flag
	if name == "" {
		source, name = "EPP_LOG_LEVEL", os.Getenv("EPP_LOG_LEVEL")
	}
	if name == "" {
		source, name = "log.level", configured
	}
	level, ok := levels[name]
	if !ok {
		return nil, fmt.Errorf("%s: %q: must be error, warn, info, debug or trace", source, name)
	}
	options := &slog.HandlerOptions{Level: level}
	if level == picker.LevelTrace {
		options.ReplaceAttr = nameTrace // it is asked for every attribute, and a line has a dozen
	}
	return slog.New(slog.NewJSONHandler(w, options)), nil
}

// nameTrace writes TRACE for the level that slog calls DEBUG-4.
func nameTrace(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && a.Key == slog.LevelKey && a.Value.Any() == picker.LevelTrace {
		a.Value = slog.StringValue("TRACE")
	}
	return a
}
