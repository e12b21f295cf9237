// TCP echo on go-uring's net package and reactor, based on go-uring's multi-thread echo server: one goroutine per
// connection, one ring per core. With --sqpoll, a kernel thread polls for submissions.
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

// The values of go-uring's example.
const (
	ringEntries = uring.MaxEntries >> 3
	pollIdle    = 100 * time.Millisecond
)

type logger struct{}

func (logger) Log(values ...interface{}) {
	fmt.Fprintln(os.Stderr, values...)
}

func main() {
	sqpoll := flag.Bool("sqpoll", false, "poll for submissions in a kernel thread (IORING_SETUP_SQPOLL)")
	arguments := flags.FromArguments(4096)
	// As in the example: the two goroutines of each ring spend much of their time in system calls.
	runtime.GOMAXPROCS(2 * arguments.Threads())
	if err := serve(arguments, *sqpoll); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(arguments *flags.Flags, sqpoll bool) error {
	details, options := "driver=io_uring", []uring.SetupOption{}
	if sqpoll {
		details, options = "driver=io_uring features=sqpoll", append(options, uring.WithSQPoll(pollIdle))
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
	flags.AnnounceReady(addr, details)
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
		// Unlike in package net, a write is one send, which can be partial.
		for sent := 0; sent < received; {
			count, err := connection.Write(buffer[sent:received])
			if err != nil {
				return err
			}
			sent += count
		}
	}
}
