// Package flags is the command line that every Go peer understands, and what all of them do alike: run on the cores
// they are given and say when they are ready.
//
//	go-net-echo --addr 127.0.0.1:7000 [--cores 0,2-3] [--buffer-bytes 4096]
//
// Go decides which of its threads runs what. The peers bind the whole process to the cores and let as many goroutines
// run at once as there are cores (GOMAXPROCS).
package flags

import (
	"flag"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// AcceptRetry is how long a server leaves its accept loop after a failed accept (out of descriptors, mostly), so that
// it does not spin on an error that lasts.
const AcceptRetry = time.Millisecond

// Flags is what a peer was asked to do.
type Flags struct {
	// Addr is the address to listen on; port 0 lets the kernel choose.
	Addr string
	// Cores to run on; empty leaves the choice to the scheduler.
	Cores []int
	// BufferBytes is the size of one connection's buffer, bytes.
	BufferBytes int
}

// Threads is how many goroutines may run at once: one for every core, at least one.
func (f *Flags) Threads() int {
	return max(1, len(f.Cores))
}

// FromArguments reads the process's arguments and binds the process to the cores; on a mistake it prints the cause and
// exits with 2. Flags of the peer's own are to be declared before, as usual in package flag.
func FromArguments(defaultBufferBytes int) *Flags {
	addr := flag.String("addr", "", "`ADDRESS:PORT` to listen on")
	cores := flag.String("cores", "", "`LIST` of cores to run on, as in 0,2-3")
	bufferBytes := flag.Int("buffer-bytes", defaultBufferBytes, "size of a connection's buffer, bytes")
	flag.Parse()
	flags, err := read(*addr, *cores, *bufferBytes)
	if err == nil {
		err = pin(flags.Cores)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		flag.Usage()
		os.Exit(2)
	}
	runtime.GOMAXPROCS(flags.Threads())
	return flags
}

// AnnounceReady tells whoever started the server that connections are accepted from now on, and what it runs on, as
// in "driver=epoll".
func AnnounceReady(addr, about string) {
	fmt.Printf("ready addr=%s %s\n", addr, about)
}

// FixedPort replaces port 0 by a free port, for libraries that listen by themselves and do not tell where.
func FixedPort(addr string) (string, error) {
	if !strings.HasSuffix(addr, ":0") {
		return addr, nil
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

func read(addr, cores string, bufferBytes int) (*Flags, error) {
	if _, err := net.ResolveTCPAddr("tcp", addr); err != nil || addr == "" {
		return nil, fmt.Errorf("--addr %q: not ADDRESS:PORT", addr)
	}
	if bufferBytes <= 0 {
		return nil, fmt.Errorf("--buffer-bytes %d: not a size", bufferBytes)
	}
	list, err := parseCores(cores)
	if err != nil {
		return nil, err
	}
	return &Flags{Addr: addr, Cores: list, BufferBytes: bufferBytes}, nil
}

func parseCores(list string) ([]int, error) {
	if list == "" {
		return nil, nil
	}
	wrong := fmt.Errorf("--cores %q: not a list of cores such as 0,2-3", list)
	var cores []int
	for _, part := range strings.Split(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return nil, wrong
		}
		to, err := strconv.ParseUint(last, 10, 16)
		if err != nil || to < from {
			return nil, wrong
		}
		for core := from; core <= to; core++ {
			cores = append(cores, int(core))
		}
	}
	return cores, nil
}

// pin binds every thread that the process has to the cores; later ones inherit it from those.
func pin(cores []int) error {
	if len(cores) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, core := range cores {
		set.Set(core)
	}
	// Twice: a thread that was started during the first pass may have been born outside.
	for range 2 {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, thread := range threads {
			id, err := strconv.Atoi(thread.Name())
			if err != nil {
				return err
			}
			if err := unix.SchedSetaffinity(id, &set); err != nil && err != unix.ESRCH {
				return fmt.Errorf("--cores: cannot run on %v: %w; see /proc/self/status for the allowed ones", cores, err)
			}
		}
	}
	return nil
}
