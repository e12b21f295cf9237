// TCP echo on Go's package net, one goroutine per connection.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"anello/peers/flags"
)

func main() {
	arguments := flags.FromArguments(4096)
	listener, err := net.Listen("tcp", arguments.Addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	flags.AnnounceReady(listener.Addr().String(), "driver=epoll")
	for {
		connection, err := listener.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, "accept:", err)
			time.Sleep(flags.AcceptRetry)
			continue
		}
		go func() {
			if err := echo(connection, arguments.BufferBytes); err != nil {
				fmt.Fprintln(os.Stderr, "connection:", err)
			}
		}()
	}
}

// echo echoes until EOF. Package net sets TCP_NODELAY, and a write is complete or fails.
func echo(connection net.Conn, bufferBytes int) error {
	defer connection.Close()
	buffer := make([]byte, bufferBytes)
	for {
		received, err := connection.Read(buffer)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := connection.Write(buffer[:received]); err != nil {
			return err
		}
	}
}
