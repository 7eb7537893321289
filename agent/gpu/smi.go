package gpu

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"epp.internal/epp"
)

// maxOutput bounds what nvidia-smi says: a line of 60 bytes a device.
const maxOutput = 64 << 10

// query asks for a line each of comma-separated values without units. Source:
// nvidia-smi --help-query-gpu.
var query = []string{
	"--query-gpu=index,utilization.gpu,memory.used,memory.total,temperature.gpu,ecc.errors.uncorrected.volatile.total",
	"--format=csv,noheader,nounits",
}

// openProgram finds nvidia-smi.
func openProgram(o Options) (*Reader, error) {
	path, err := exec.LookPath(cmp.Or(o.Program, "nvidia-smi"))
	if err != nil {
		return nil, err
	}
	return &Reader{Source: "nvidia-smi", read: func(ctx context.Context) ([]device, error) {
		out, err := exec.CommandContext(ctx, path, query...).Output()
		if err != nil {
			return nil, fmt.Errorf("nvidia-smi: %w", err)
		}
		return parse(out[:min(len(out), maxOutput)]), nil
	}}, nil
}

// parse reads the lines of nvidia-smi. What is no number ("[N/A]", "[Not
// Supported]") is unknown; a line without an index is passed over.
func parse(out []byte) (devices []device) {
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() && len(devices) < maxDevices {
		fields := strings.Split(lines.Text(), ",")
		if len(fields) != 6 {
			continue
		}
		index, err := strconv.Atoi(strings.TrimSpace(fields[0]))
		if err != nil || index < 0 {
			continue
		}
		used, total := number(fields[2], 1), number(fields[3], 1)
		devices = append(devices, device{
			index: index, utilization: number(fields[1], 100), memory: part(used, total),
			temperature: number(fields[4], 1), errors: number(fields[5], 1),
		})
	}
	return devices
}

// number reads a number of so many units to one.
func number(s string, unit float64) epp.Gauge {
	v, err := strconv.ParseFloat(strings.TrimSpace(s), 64)
	if err != nil {
		return epp.Gauge{}
	}
	return epp.Known(v / unit)
}

// part is how much of a whole is used.
func part(used, total epp.Gauge) epp.Gauge {
	if !used.Known || !total.Known || total.Value == 0 {
		return epp.Gauge{}
	}
	return epp.Known(min(1, used.Value/total.Value))
}
