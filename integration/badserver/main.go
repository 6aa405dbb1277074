// Command badserver is an MCP server over stdio that misbehaves as it is told,
// for tests of what has to bear it. It shares no code with the hub.
//
//	badserver            a good start; each tool misbehaves in its own way
//	badserver -start M   misbehaves from the start: at the handshake or its list
//	badserver -pid FILE  also writes its process id to FILE
//
// `badserver -list` prints the names of both kinds.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

func main() {
	start := flag.String("start", "", "how to misbehave from the start")
	pid := flag.String("pid", "", "a file for the process id")
	list := flag.Bool("list", false, "print the ways to misbehave")
	flag.Parse()
	switch {
	case *list:
		fmt.Println("-start:", slices.Sorted(maps.Keys(starts)))
		fmt.Println("tools:", slices.Sorted(maps.Keys(tools)))
		return
	case *start != "" && starts[*start] == nil:
		fmt.Fprintf(os.Stderr, "badserver: no way %q to start badly; see -list\n", *start)
		os.Exit(2)
	}
	if *pid != "" {
		if err := writeWhole(*pid, strconv.Itoa(os.Getpid())); err != nil {
			panic(err)
		}
	}
	s := &server{start: starts[*start]}
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var m message
		if json.Unmarshal(line, &m) == nil {
			s.handle(&m)
		}
	}
}

// writeWhole writes a file that no reader sees half written, not even one that
// has read the file of a predecessor.
func writeWhole(name, text string) error {
	part := fmt.Sprintf("%s.%d", name, os.Getpid())
	if err := os.WriteFile(part, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(part, name)
}

type message struct {
	ID     json.RawMessage
	Method string
	Params struct {
		Name   string
		Cursor string
		Meta   struct{ ProgressToken json.RawMessage } `json:"_meta"`
	}
	Error json.RawMessage
}

type server struct {
	start func(*server, *message) bool // true: it has dealt with the message
	mu    sync.Mutex                   // held while a line is written
	asked *message                     // the call that waits for an answer of the client
}

// raw writes text as it is.
func (s *server) raw(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = os.Stdout.WriteString(text) // the reader may be gone, which ends us soon
}

func (s *server) line(format string, args ...any) { s.raw(fmt.Sprintf(format, args...) + "\n") }

func (s *server) result(id json.RawMessage, result string) {
	s.line(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result)
}

func (s *server) handle(m *message) {
	if s.start != nil && s.start(s, m) {
		return
	}
	switch {
	case m.Method == "" && s.asked != nil: // the answer to our own request
		s.result(s.asked.ID, content("the client said "+string(m.Error)))
		s.asked = nil
	case len(m.ID) == 0:
	case m.Method == "initialize":
		s.result(m.ID, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"bad","version":"1"}}`)
	case m.Method == "ping":
		s.result(m.ID, `{}`)
	case m.Method == "tools/list":
		s.result(m.ID, toolList(slices.Sorted(maps.Keys(tools))...))
	case m.Method == "tools/call" && tools[m.Params.Name] != nil:
		tools[m.Params.Name](s, m)
	default:
		s.line(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, m.ID)
	}
}

func toolList(names ...string) string {
	var defs []string
	for _, name := range names {
		quoted, _ := json.Marshal(name)
		defs = append(defs, `{"name":`+string(quoted)+`,"description":"x","inputSchema":{"type":"object"}}`)
	}
	return `{"tools":[` + strings.Join(defs, ",") + `]}`
}

func content(text string) string {
	quoted, _ := json.Marshal(text)
	return `{"content":[{"type":"text","text":` + string(quoted) + `}]}`
}

const (
	nested  = 100_000
	tooLong = 9 << 20
)

// tools are the ways to answer tools/call; the test says what each has to come to.
var tools = map[string]func(*server, *message){
	"good":  func(s *server, m *message) { s.result(m.ID, content("fine")) },
	"pid":   func(s *server, m *message) { s.result(m.ID, content(strconv.Itoa(os.Getpid()))) },
	"never": func(*server, *message) {},
	"exit":  func(*server, *message) { fmt.Fprintln(os.Stderr, "out of luck"); os.Exit(3) },
	"garbage": func(s *server, m *message) {
		s.line("<html>oops")
		s.line("\x00\x01\xff")
		s.line("")
		s.result(m.ID, content("fine"))
	},
	"half": func(s *server, m *message) { s.line(`{"jsonrpc":"2.0","id":%s,"resu`, m.ID) },
	"half_exit": func(s *server, m *message) {
		s.raw(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"resu`)
		os.Exit(0)
	},
	"long_line": func(s *server, m *message) { s.result(m.ID, content(strings.Repeat("x", tooLong))) },
	"long_junk": func(s *server, m *message) {
		s.line("%s", strings.Repeat("x", tooLong))
		s.result(m.ID, content("fine"))
	},
	"near_limit": func(s *server, m *message) {
		s.result(m.ID, content(strings.Repeat("x", 8<<20-1000)))
	},
	"wrong_id":  func(s *server, m *message) { s.result(json.RawMessage(`"not-yours"`), content("wrong")) },
	"null_id":   func(s *server, m *message) { s.result(json.RawMessage(`null`), content("wrong")) },
	"string_id": func(s *server, m *message) { s.result(json.RawMessage(strconv.Quote(string(m.ID))), content("wrong")) },
	"twice":     func(s *server, m *message) { s.result(m.ID, content("first")); s.result(m.ID, content("second")) },
	"batch": func(s *server, m *message) {
		s.line(`[{"jsonrpc":"2.0","id":%s,"result":%s}]`, m.ID, content("batched"))
	},
	"nesting": func(s *server, m *message) {
		s.result(m.ID, `{"content":`+strings.Repeat("[", nested)+strings.Repeat("]", nested)+`}`)
	},
	"bad_utf8": func(s *server, m *message) {
		s.result(m.ID, "{\"content\":[{\"type\":\"text\",\"text\":\"\xff\xfe\"}]}")
	},
	"dup_id": func(s *server, m *message) {
		s.line(`{"jsonrpc":"2.0","id":999,"id":%s,"result":%s}`, m.ID, content("dup"))
	},
	"dup_result": func(s *server, m *message) {
		s.line(`{"jsonrpc":"2.0","id":%s,"result":%s,"result":%s}`, m.ID, content("one"), content("two"))
	},
	"no_result": func(s *server, m *message) { s.line(`{"jsonrpc":"2.0","id":%s}`, m.ID) },
	"both": func(s *server, m *message) {
		s.line(`{"jsonrpc":"2.0","id":%s,"result":%s,"error":{"code":1,"message":"x"}}`, m.ID, content("x"))
	},
	"text_result": func(s *server, m *message) { s.result(m.ID, `"text"`) },
	"null_result": func(s *server, m *message) { s.result(m.ID, `null`) },
	"text_error":  func(s *server, m *message) { s.line(`{"jsonrpc":"2.0","id":%s,"error":"text"}`, m.ID) },
	"own_error": func(s *server, m *message) {
		s.line(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"own words","data":[1]}}`, m.ID)
	},
	"old_rpc": func(s *server, m *message) { s.line(`{"id":%s,"result":%s}`, m.ID, content("no version")) },
	"numbers": func(s *server, m *message) {
		s.result(m.ID, `{"content":[],"structuredContent":{"big":9007199254740993,"huge":1e400,"exact":1.0},"odd":{"b":1,"a":2}}`)
	},
	"close_stdout": func(*server, *message) {
		os.Stdout.Close()
	},
	"flood": func(s *server, m *message) {
		for i := range 10_000 {
			if len(m.Params.Meta.ProgressToken) > 0 {
				s.line(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, m.Params.Meta.ProgressToken, i+1)
			}
		}
		s.result(m.ID, content("flooded"))
	},
	"late_notify": func(s *server, m *message) {
		s.result(m.ID, content("fine"))
		s.line(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, orNull(m.Params.Meta.ProgressToken))
	},
	"stray_notify": func(s *server, m *message) {
		s.line(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"nobody's","progress":1}}`)
		s.line(`{"jsonrpc":"2.0","method":"notifications/nonsense","params":[1,2]}`)
		s.line(`{"jsonrpc":"2.0","method":"notifications/message","params":"text"}`)
		s.result(m.ID, content("fine"))
	},
	"ask": func(s *server, m *message) {
		s.asked = m
		s.line(`{"jsonrpc":"2.0","id":"q1","method":"nonsense/method","params":{}}`)
	},
	"list_storm": func(s *server, m *message) {
		for range 1000 {
			s.line(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		}
		s.result(m.ID, content("fine"))
	},
}

func orNull(v json.RawMessage) json.RawMessage {
	if len(v) == 0 {
		return json.RawMessage("null")
	}
	return v
}

// starts are the ways to misbehave before any call: each gets every message
// first and says whether it has dealt with it.
var starts = map[string]func(*server, *message) bool{
	"exit":   func(*server, *message) bool { fmt.Fprintln(os.Stderr, "no licence found"); os.Exit(1); return true },
	"silent": func(*server, *message) bool { return true },
	"banner": func(s *server, m *message) bool { s.line("Welcome to badserver!"); return false },
	"list_never": func(_ *server, m *message) bool {
		return m.Method == "tools/list"
	},
	"handshake_garbage": func(s *server, m *message) bool { s.line("?"); return true },
	"handshake_version": onInitialize(`{"protocolVersion":"1999-01-01","capabilities":{"tools":{}},"serverInfo":{"name":"bad","version":"1"}}`),
	"handshake_text":    onInitialize(`"hello"`),
	"names":             onList(toolList("good", "zero\u200bwidth", "right\u202eleft", "", " ", "schön", strings.Repeat("n", 129), "a/b", "caf\u0065\u0301", "line\nbreak")),
	"ten_thousand": func(s *server, m *message) bool {
		if m.Method != "tools/list" {
			return false
		}
		names := make([]string, 10_000)
		for i := range names {
			names[i] = "tool_" + strconv.Itoa(i)
		}
		s.result(m.ID, toolList(names...))
		return true
	},
	"same_names":  onList(toolList("good", "twin", "twin")),
	"list_text":   onList(`"tools"`),
	"list_object": onList(`{"tools":{"good":{}}}`),
	"list_none":   onList(`{}`),
	"list_odd": onList(`{"tools":[1,null,"x",[],{},{"name":5},{"name":"no_schema"},{"name":"text_schema","inputSchema":"x"},` +
		`{"name":"good","inputSchema":{"type":"object"}}]}`),
	"list_bomb": onList(`{"tools":[{"name":"good","inputSchema":` + strings.Repeat(`{"a":`, nested) + `1` + strings.Repeat(`}`, nested) + `}]}`),
	"list_utf8": onList("{\"tools\":[{\"name\":\"good\xff\",\"inputSchema\":{\"type\":\"object\"}}]}"),
	"list_long": onList(`{"tools":[{"name":"good","description":"` + strings.Repeat("x", tooLong) + `","inputSchema":{"type":"object"}}]}`),
	"cursor_same": func(s *server, m *message) bool {
		if m.Method != "tools/list" {
			return false
		}
		s.result(m.ID, strings.TrimSuffix(toolList("good"), "}")+`,"nextCursor":"again"}`)
		return true
	},
	"cursor_endless": func(s *server, m *message) bool {
		if m.Method != "tools/list" {
			return false
		}
		n, _ := strconv.Atoi(m.Params.Cursor)
		s.result(m.ID, fmt.Sprintf(`%s,"nextCursor":"%d"}`, strings.TrimSuffix(toolList("tool_"+strconv.Itoa(n)), "}"), n+1))
		return true
	},
	"crash_later": func(_ *server, m *message) bool {
		if m.Method == "tools/list" {
			time.AfterFunc(50*time.Millisecond, func() { os.Exit(4) })
		}
		return false
	},
	"deaf": func(_ *server, m *message) bool { // it never reads again
		if m.Method == "tools/list" {
			time.Sleep(time.Hour)
		}
		return false
	},
}

func onInitialize(result string) func(*server, *message) bool { return on("initialize", result) }

func onList(result string) func(*server, *message) bool { return on("tools/list", result) }

func on(method, result string) func(*server, *message) bool {
	return func(s *server, m *message) bool {
		if m.Method != method {
			return false
		}
		s.result(m.ID, result)
		return true
	}
}
