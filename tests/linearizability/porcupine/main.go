// The referee: the same models for porcupine, a checker of linearizability by others.
//
// It reads one history of one target a line, as a JSON list of operations (tests/linearizability/operation.py has the
// fields), and says for each "right", "wrong" or "undecided" (not within the seconds of the first argument).
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Client     int     `json:"client"`
	Verb       string  `json:"verb"`
	Outcome    string  `json:"outcome"`
	Invoked    int64   `json:"invoked"`
	Answered   *int64  `json:"answered"`
	Content    *string `json:"content"`
	Offset     *int    `json:"offset"`
	Count      *int    `json:"count"`
	Version    *int    `json:"version"`
	Length     *int    `json:"length"`
	Start      *int    `json:"start"`
	Sealed     *bool   `json:"sealed"`
	NewVersion *int    `json:"new_version"`
}

const noEntry = -1

// What a target is: a segment or an entry of a table.
type state struct {
	exists, sealed bool
	start          int
	content        string // of the segment, or the entry's value
	version        int    // -2: not known
}

const unknownVersion = -2

func told(value *int, is int) bool      { return value == nil || *value == is }
func toldBool(value *bool, is bool) bool { return value == nil || *value == is }

func bytesOf(value *string) string {
	if value == nil {
		return ""
	}
	// One character for each byte.
	runes := []rune(*value)
	found := make([]byte, len(runes))
	for place, each := range runes {
		found[place] = byte(each)
	}
	return string(found)
}

func segment(s state, o operation) (bool, state) {
	unknown := o.Outcome == "unknown"
	length := len(s.content)
	if o.Verb == "create" {
		switch {
		case unknown && s.exists:
			return true, s
		case o.Outcome == "exists":
			return s.exists, s
		}
		return !s.exists, state{exists: true}
	}
	if !s.exists || o.Outcome == "absent" {
		return unknown || (!s.exists && o.Outcome == "absent"), s
	}
	switch o.Verb {
	case "append":
		meets := o.Offset == nil || *o.Offset == length
		switch o.Outcome {
		case "sealed":
			return s.sealed && told(o.Length, length), s
		case "bad_offset":
			return !meets && told(o.Length, length), s
		}
		if s.sealed || !meets {
			return unknown, s
		}
		s.content += bytesOf(o.Content)
		return unknown || told(o.Length, len(s.content)), s
	case "seal":
		s.sealed = true
		return unknown || told(o.Length, length), s
	case "truncate":
		if o.Outcome == "bad_offset" {
			return *o.Offset > length && told(o.Length, length), s
		}
		if *o.Offset > length {
			return unknown, s
		}
		if *o.Offset > s.start {
			s.start = *o.Offset
		}
		return true, s
	case "info":
		right := told(o.Length, length) && told(o.Start, s.start) && toldBool(o.Sealed, s.sealed)
		return unknown || right, s
	case "read":
		if unknown {
			return true, s
		}
		switch o.Outcome {
		case "truncated":
			return *o.Offset < s.start && told(o.Start, s.start), s
		case "bad_offset":
			return *o.Offset > length && told(o.Length, length), s
		}
		if *o.Offset < s.start || *o.Offset > length {
			return false, s
		}
		end := min(*o.Offset+*o.Count, length)
		right := told(o.Length, length) && toldBool(o.Sealed, s.sealed)
		return right && bytesOf(o.Content) == s.content[*o.Offset:end], s
	case "delete":
		return true, state{}
	}
	panic("no verb of segments: " + o.Verb)
}

func entry(s state, o operation) (bool, state) {
	unknown := o.Outcome == "unknown"
	if o.Verb == "get" {
		if unknown {
			return true, s
		}
		if !s.exists {
			return o.Content == nil, s
		}
		if o.Content == nil || bytesOf(o.Content) != s.content {
			return false, s
		}
		if o.NewVersion != nil {
			if s.version != unknownVersion && s.version != *o.NewVersion {
				return false, s
			}
			s.version = *o.NewVersion
		}
		return true, s
	}
	may, mayNot := true, false
	if o.Version != nil {
		switch {
		case *o.Version == noEntry || !s.exists:
			may = *o.Version == noEntry && !s.exists
			mayNot = !may
		case s.version == unknownVersion:
			mayNot = true
		default:
			may = *o.Version == s.version
			mayNot = !may
		}
	}
	if o.Outcome == "bad_version" {
		return mayNot, s
	}
	if !may {
		return unknown, s
	}
	if o.Verb == "remove" {
		return true, state{}
	}
	following := state{exists: true, content: bytesOf(o.Content), version: unknownVersion}
	if o.NewVersion != nil {
		following.version = *o.NewVersion
		if s.exists && s.version != unknownVersion && following.version <= s.version {
			return unknown, s
		}
	}
	return true, following
}

func model(step func(state, operation) (bool, state)) porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return state{} },
		Step: func(s, input, _ interface{}) (bool, interface{}) {
			return step(s.(state), input.(operation))
		},
	}
}

func check(line []byte, limit time.Duration) string {
	var operations []operation
	if err := json.Unmarshal(line, &operations); err != nil {
		panic(err)
	}
	end := int64(0)
	for _, each := range operations {
		end = max(end, each.Invoked)
		if each.Answered != nil {
			end = max(end, *each.Answered)
		}
	}
	history := make([]porcupine.Operation, 0, len(operations))
	step := segment
	for _, each := range operations {
		if each.Verb == "put" || each.Verb == "get" || each.Verb == "remove" {
			step = entry
		}
		answered := end + 1
		if each.Answered != nil {
			answered = *each.Answered
		}
		history = append(history, porcupine.Operation{
			ClientId: each.Client, Input: each, Call: each.Invoked, Return: answered,
		})
	}
	switch porcupine.CheckOperationsTimeout(model(step), history, limit) {
	case porcupine.Ok:
		return "right"
	case porcupine.Illegal:
		return "wrong"
	}
	return "undecided"
}

func main() {
	seconds, err := strconv.ParseFloat(os.Args[1], 64)
	if err != nil {
		panic(err)
	}
	limit := time.Duration(seconds * float64(time.Second))
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) == 0 && err != nil {
			return
		}
		fmt.Println(check(line, limit))
	}
}
