package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"epp.internal/epp/config"
	"epp.internal/epp/decision"
	"epp.internal/epp/picker"
	"epp.internal/epp/tokenize"
)

func serveCommand() *cobra.Command {
	var file string
	var pool poolFlags
	cmd := &cobra.Command{
		Use:   "serve {--config FILE | --pool NAMESPACE/NAME}",
		Short: "Run the picker as an OpenAI-compatible proxy in front of the pool",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" && pool.pool == "" {
				return errors.New("--config or --pool is needed: a file of settings, or an InferencePool on Kubernetes")
			}
			cfg, err := readConfigWith(file, pool.set)
			if err != nil {
				return err
			}
			flag, _ := cmd.Flags().GetString("log-level")
			log, err := newLog(cmd.ErrOrStderr(), flag, cfg.Log.Level)
			if err != nil {
				return err
			}
			tok, err := loadTokenizer(cfg, log)
			if err != nil {
				return err
			}
			s, err := build(cfg, tok, log, watch{})
			if err != nil {
				return err
			}
			return s.run(cmd.Context(), func(at addresses) {
				log.Info("serving", "proxy", at.proxy, "metrics", at.metrics, "extProc", at.extproc, "health", at.health, "reports", at.reports, "endpoints", len(cfg.Pool.Endpoints), "version", version)
			})
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "the configuration, a YAML file (default: every setting's own)")
	cmd.Flags().StringVar(&pool.pool, "pool", "", "NAMESPACE/NAME of the InferencePool on Kubernetes to serve, in place of kubernetes.pool")
	cmd.Flags().StringVar(&pool.kubeconfig, "kubeconfig", "", "how the API server is reached, in place of kubernetes.kubeconfig (default: as a pod)")
	return cmd
}

// readConfig reads a file of settings.
func readConfig(file string) (*config.Config, error) {
	return readConfigWith(file, func(*config.Config) {})
}

// readConfigWith reads a file of settings, none where it has no name, and sets over it
// what flags say.
func readConfigWith(file string, set func(*config.Config)) (*config.Config, error) {
	var data []byte
	if file != "" {
		var err error
		if data, err = os.ReadFile(file); err != nil {
			return nil, err
		}
	}
	return config.ParseWith(cmp.Or(file, "settings"), data, set)
}

// readSettings is what decisions read of the file that --config names.
func readSettings(file string) (*decision.Settings, error) {
	cfg, err := readConfig(file)
	if unread := (*fs.PathError)(nil); errors.As(err, &unread) {
		return nil, fmt.Errorf("--config: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return cfg.Settings(staleAfter(len(cfg.Pool.Endpoints))), nil
}

// loadTokenizer reads the model's files: two that it must have, and two that some
// models have. Without a path there is no tokenizer, and the log says what that
// means.
func loadTokenizer(cfg *config.Config, log *slog.Logger) (picker.Tokenizer, error) {
	dir := cfg.Tokenizer.Path
	if dir == "" {
		log.Warn("no tokenizer is configured: "+withoutTokenizer(cfg), "setting", "tokenizer.path")
		return nil, nil
	}
	files := tokenize.Files{Mode: cfg.Tokenizer.Mode}
	var template []byte
	for _, f := range []struct {
		name string
		to   *[]byte
		must bool
	}{
		{"tokenizer.json", &files.Tokenizer, true},
		{"tokenizer_config.json", &files.TokenizerConfig, true},
		{"config.json", &files.Config, false},
		{"chat_template.jinja", &template, false},
	} {
		data, err := os.ReadFile(filepath.Join(dir, f.name))
		if err != nil && (f.must || !errors.Is(err, fs.ErrNotExist)) {
			return nil, fmt.Errorf("tokenizer.path: %w", err)
		}
		if strings.HasSuffix(f.name, ".json") && len(data) > 0 && !json.Valid(data) {
			return nil, fmt.Errorf("tokenizer.path: %q is not JSON", filepath.Join(dir, f.name))
		}
		*f.to = data
	}
	files.ChatTemplate = string(template)
	tok, err := tokenize.Load(files)
	if err != nil && cfg.Tokenizer.AskEngines {
		log.Warn("the tokenizer's files are not understood exactly, so they are not used: "+withoutTokenizer(cfg), "setting", "tokenizer.path", "path", dir, "error", err)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("tokenizer.path: %q: %w", dir, err)
	}
	tok.SetClock(time.Now) // some templates write today's date
	return tok, nil
}

// withoutTokenizer says where tokens come from where our own tokenizer has none.
func withoutTokenizer(cfg *config.Config) string {
	if cfg.Tokenizer.AskEngines {
		return fmt.Sprintf("engines are asked for each prompt's tokens, for %v at most", cfg.Tokenizer.AskBudget.Duration)
	}
	return "only prompts sent as token IDs meet the engines' cached blocks"
}
