package chat

import (
	"fmt"
	"strings"
	"time"

	"epp.internal/epp/third_party/jinja"
)

// strftimeNow returns the template's function of that name.
func (t *Template) strftimeNow() jinja.Value {
	return jinja.NewCallable("strftime_now", func(args []jinja.Value, _ jinja.Kwargs) (jinja.Value, error) {
		if len(args) != 1 || !args[0].IsString() {
			return jinja.Undefined(), fmt.Errorf("strftime_now: one format is expected")
		}
		if t.now == nil {
			return jinja.Undefined(), notRenderable("the template writes the date, and there is no clock")
		}
		text, err := strftime(args[0].AsString(), t.now())
		return jinja.NewString(text), err
	})
}

// layouts are Python's directives in Go's terms.
var layouts = map[byte]string{
	'Y': "2006", 'y': "06", 'm': "01", 'd': "02", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'j': "002",
	'B': "January", 'b': "Jan", 'A': "Monday", 'a': "Mon", 'p': "PM", 'z': "-0700", 'Z': "MST", 'e': "_2",
	'F': "2006-01-02", 'T': "15:04:05", 'D': "01/02/06", 'R': "15:04",
	'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05",
}

// strftime formats now as Python's datetime.strftime does in the C locale.
func strftime(format string, now time.Time) (string, error) {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		c, short := format[i], false
		if c == '-' && i+1 < len(format) {
			i++
			c, short = format[i], true
		}
		layout, ok := layouts[c]
		switch {
		case c == '%':
			b.WriteByte('%')
		case !ok || c == 'z' && now.Location() == time.UTC:
			return "", &jinja.Unsupported{Feature: fmt.Sprintf("strftime directive %%%c", c)}
		case short:
			text := strings.TrimLeft(now.Format(layout), "0 ")
			if text == "" {
				text = "0"
			}
			b.WriteString(text)
		default:
			b.WriteString(now.Format(layout))
		}
	}
	return b.String(), nil
}
