// Package flags contains the command line and shared functions of the Go peers: pinning to cores and the ready line.
//
//	go-net-echo --addr 127.0.0.1:7000 [--cores 0,2-3] [--buffer-bytes 4096]
//
// The Go scheduler assigns goroutines to threads. The peers pin the whole process to the cores and set GOMAXPROCS to
// the number of cores.
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

// AcceptRetry is the pause of the accept loop after a failed accept, usually because descriptors ran out, so that the
// loop does not spin on a persistent error.
const AcceptRetry = time.Millisecond

// Flags is the parsed command line of a peer.
type Flags struct {
	// Addr is the address to listen on; port 0 lets the kernel choose.
	Addr string
	// Cores is the list of cores to run on. If empty, the process is not pinned.
	Cores []int
	// BufferBytes is the size of one connection's buffer in bytes.
	BufferBytes int
}

// Threads returns the number of goroutines that run in parallel: one per core, at least one.
func (f *Flags) Threads() int {
	return max(1, len(f.Cores))
}

// FromArguments parses the arguments of the process and pins the process to the cores. On an error, it prints the cause
// and exits with status 2. Further flags of a peer must be declared before, as usual with package flag.
func FromArguments(defaultBufferBytes int) *Flags {
	addr := flag.String("addr", "", "`ADDRESS:PORT` to listen on")
	cores := flag.String("cores", "", "`LIST` of cores to run on, e.g. 0,2-3")
	bufferBytes := flag.Int("buffer-bytes", defaultBufferBytes, "size of a connection's buffer in bytes")
	flag.Parse()
	flags, err := validate(*addr, *cores, *bufferBytes)
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

// AnnounceReady prints the ready line: the server accepts connections. details are its further fields, e.g.
// "driver=epoll".
func AnnounceReady(addr, details string) {
	fmt.Printf("ready addr=%s %s\n", addr, details)
}

// FixedPort replaces port 0 by a free port, for libraries that listen themselves and do not report the port.
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

func validate(addr, cores string, bufferBytes int) (*Flags, error) {
	if _, err := net.ResolveTCPAddr("tcp", addr); err != nil || addr == "" {
		return nil, fmt.Errorf("invalid --addr %q: expected ADDRESS:PORT", addr)
	}
	if bufferBytes <= 0 {
		return nil, fmt.Errorf("invalid --buffer-bytes %d: expected a positive size", bufferBytes)
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
	invalid := fmt.Errorf("invalid --cores %q: expected a list of cores, e.g. 0,2-3", list)
	var cores []int
	for _, part := range strings.Split(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return nil, invalid
		}
		to, err := strconv.ParseUint(last, 10, 16)
		if err != nil || to < from {
			return nil, invalid
		}
		for core := from; core <= to; core++ {
			cores = append(cores, int(core))
		}
	}
	return cores, nil
}

// pin pins all threads of the process to the cores; later threads inherit the affinity.
func pin(cores []int) error {
	if len(cores) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, core := range cores {
		set.Set(core)
	}
	// Two passes: a thread started during the first pass can have inherited the old affinity.
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
				return fmt.Errorf("cannot pin to cores %v: %w (/proc/self/status lists the allowed cores)", cores, err)
			}
		}
	}
	return nil
}
