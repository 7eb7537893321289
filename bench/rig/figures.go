package rig

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Figures are where programs that measure leave what they found, for bench/table: a
// line each of a row, the side that it is of, the values of all rounds. The nil
// Figures keeps nothing.
//
//	8a/epp 2349 2410 2288
type Figures struct{ file *os.File }

// CreateFigures appends to the file at path; an empty path is the nil Figures.
func CreateFigures(path string) (*Figures, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644) //nolint:gosec // a file of results, for all to read
	if err != nil {
		return nil, err
	}
	return &Figures{f}, nil
}

// Put writes one line. row and side hold no blank, row no slash.
func (f *Figures) Put(row, side string, values ...float64) {
	if f == nil {
		return
	}
	fmt.Fprintf(f.file, "%s/%s", row, side)
	for _, v := range values {
		fmt.Fprintf(f.file, " %g", v)
	}
	fmt.Fprintln(f.file)
}

// Close closes the file.
func (f *Figures) Close() error {
	if f == nil {
		return nil
	}
	return f.file.Close()
}

// ReadFigures returns the values of every row and side, each sorted.
func ReadFigures(path string) (map[string]map[string][]float64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	rows := map[string]map[string][]float64{}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		row, side, ok := strings.Cut(words[0], "/")
		if !ok || len(words) < 2 {
			return nil, fmt.Errorf("%s: line %q: want ROW/SIDE VALUE …", path, line)
		}
		var values []float64
		for _, w := range words[1:] {
			v, err := strconv.ParseFloat(w, 64)
			if err != nil {
				return nil, fmt.Errorf("%s: line %q: %w", path, line, err)
			}
			values = append(values, v)
		}
		slices.Sort(values)
		if rows[row] == nil {
			rows[row] = map[string][]float64{}
		}
		rows[row][side] = values
	}
	return rows, nil
}
