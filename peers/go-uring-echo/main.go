// TCP echo on go-uring's net package over its reactor, after go-uring's own multi-thread echo server: a goroutine per
// connection, a ring per core; with --sqpoll a kernel thread takes the submissions.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"time"

	"anello/peers/flags"
	uringnet "github.com/godzie44/go-uring/net"
	"github.com/godzie44/go-uring/reactor"
	"github.com/godzie44/go-uring/uring"
	"golang.org/x/sys/unix"
)

// As in go-uring's example.
const (
	ringEntries = uring.MaxEntries >> 3
	pollIdle    = 100 * time.Millisecond
)

type logger struct{}

func (logger) Log(words ...interface{}) {
	fmt.Fprintln(os.Stderr, words...)
}

func main() {
	poll := flag.Bool("sqpoll", false, "let a kernel thread take the submissions (IORING_SETUP_SQPOLL)")
	arguments := flags.FromArguments(4096)
	// As in its example: the two goroutines of a ring spend much of their time in system calls.
	runtime.GOMAXPROCS(2 * arguments.Threads())
	if err := serve(arguments, *poll); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(arguments *flags.Flags, poll bool) error {
	about, options := "driver=io_uring", []uring.SetupOption{}
	if poll {
		about, options = "driver=io_uring features=sqpoll", append(options, uring.WithSQPoll(pollIdle))
	}
	rings, closeRings, err := uring.CreateMany(arguments.Threads(), ringEntries, 1, options...)
	if err != nil {
		return err
	}
	netReactor, err := reactor.NewNet(rings, reactor.WithLogger(logger{}))
	if err != nil {
		return errors.Join(err, closeRings())
	}
	addr, err := flags.FixedPort(arguments.Addr)
	if err != nil {
		return errors.Join(err, closeRings())
	}
	listener, err := uringnet.NewListener(net.ListenConfig{}, addr, netReactor)
	if err != nil {
		return errors.Join(err, closeRings())
	}
	flags.AnnounceReady(addr, about)
	accept(listener, arguments.BufferBytes)
	return nil
}

func accept(listener net.Listener, bufferBytes int) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, "accept:", err)
			time.Sleep(flags.AcceptRetry)
			continue
		}
		go func() {
			if err := echo(connection.(*uringnet.Conn), bufferBytes); err != nil {
				fmt.Fprintln(os.Stderr, "connection:", err)
			}
		}()
	}
}

func echo(connection *uringnet.Conn, bufferBytes int) error {
	defer connection.Close()
	if err := unix.SetsockoptInt(int(connection.Fd()), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	buffer := make([]byte, bufferBytes)
	for {
		received, err := connection.Read(buffer)
		if errors.Is(err, io.EOF) || received == 0 && err == nil {
			return nil
		}
		if err != nil {
			return err
		}
		// Unlike package net, a write here is one send, which may take a part only.
		for sent := 0; sent < received; {
			count, err := connection.Write(buffer[sent:received])
			if err != nil {
				return err
			}
			sent += count
		}
	}
}
