package worker

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"
)

// childEnv makes the test binary one of the children below, by name.
const childEnv = "TOOLHUB_TEST_CHILD"

// childEnviron makes a server process of the test binary run name. A race build
// sleeps for a second at exit unless told otherwise.
func childEnviron(name string) map[string]string {
	return map[string]string{childEnv: name, "GORACE": "atexit_sleep_ms=0"}
}

func TestMain(m *testing.M) {
	ReapMain()
	if name := os.Getenv(childEnv); name != "" {
		child, ok := childPrograms[name]
		if !ok {
			fmt.Fprintf(os.Stderr, "no child %q\n", name)
			os.Exit(97)
		}
		child()
		return
	}
	goleak.VerifyTestMain(m)
}

// childPrograms are programs for the tests to start.
var childPrograms = map[string]func(){
	// cat copies stdin to stdout and ends with it.
	"cat": func() {
		_, _ = io.Copy(os.Stdout, os.Stdin)
	},
	"exit3": func() {
		fmt.Fprintln(os.Stderr, "about to fail")
		os.Exit(3)
	},
	"env": func() {
		wd, _ := os.Getwd()
		fmt.Println("wd=" + wd)
		for _, v := range os.Environ() {
			fmt.Println(v)
		}
	},
	// stubborn survives the end of stdin and SIGTERM, and says so.
	"stubborn": func() {
		terms := make(chan os.Signal, 8)
		signal.Notify(terms, syscall.SIGTERM)
		fmt.Println("ready")
		for range terms {
			fmt.Println("term")
		}
	},
	// polite survives the end of stdin and leaves at SIGTERM.
	"polite": func() {
		terms := make(chan os.Signal, 8)
		signal.Notify(terms, syscall.SIGTERM)
		fmt.Println("ready")
		<-terms
		fmt.Println("bye")
	},
	"sleep": func() { time.Sleep(time.Hour) },
	// testbed is the builtin server as a process; mcpChild says what is added.
	"testbed": func() { runTestbed() },
	// library has resources, templates and prompts.
	"library": func() { _ = newLibrary().Run(context.Background(), &sdk.StdioTransport{}) },
	// asker is a legacy server that asks its client things.
	"asker": func() { _ = newAsker().Run(context.Background(), &sdk.StdioTransport{}) },
	// web serves the testbed as Streamable HTTP on the address in its argument.
	"web": func() {
		fmt.Println("listening soon")
		s := testbedWithPid()
		err := http.ListenAndServe(os.Args[1], sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return s }, &sdk.StreamableHTTPOptions{Stateless: true}))
		fmt.Fprintln(os.Stderr, err)
		os.Exit(6)
	},
	// dies ends with an error as soon as it starts, in the middle of its work.
	"dies": func() {
		fmt.Fprintln(os.Stderr, "cannot open the database")
		os.Exit(4)
	},
	"leaky": leaky,
	// dieslater fails the first time and says nothing from then on; without a
	// FILE to remember it, it starts for ever.
	"dieslater": func() {
		file := os.Getenv("FILE")
		if _, err := os.Stat(file); file == "" {
			fmt.Fprintln(os.Stderr, "waiting for the database")
		} else if err != nil {
			_ = os.WriteFile(file, nil, 0o600)
			fmt.Fprintln(os.Stderr, "cannot open the database")
			os.Exit(4)
		}
		_, _ = io.Copy(io.Discard, os.Stdin)
	},
	// fork starts a child in its group and one that left it, both of which start
	// one more, prints the four pids and then does as it is told on stdin.
	"fork": func() {
		fmt.Println(os.Getpid())
		for _, setsid := range []bool{false, true} {
			startChild("fork2", setsid)
		}
		obeyStdin()
	},
	"fork2": func() {
		fmt.Println(os.Getpid())
		startChild("fork3", false)
		time.Sleep(time.Hour)
	},
	"fork3": func() {
		fmt.Println(os.Getpid())
		time.Sleep(time.Hour)
	},
	// hub is a program that runs a forking server process, to be killed.
	"hub": func() {
		p, err := startProcess(context.Background(), &command{Path: os.Args[0], Env: childEnviron("fork")})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		out := bufio.NewScanner(p.stdout)
		for out.Scan() {
			fmt.Println(out.Text())
		}
	},
}

func startChild(name string, setsid bool) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+name)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: setsid}
	if err := cmd.Start(); err != nil {
		fmt.Println(err)
		os.Exit(98)
	}
}

// obeyStdin runs until it reads an exit code, or until stdin ends.
func obeyStdin() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		if code, err := strconv.Atoi(strings.TrimSpace(in.Text())); err == nil {
			os.Exit(code)
		}
	}
	select {}
}
