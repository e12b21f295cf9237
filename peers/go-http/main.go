// HTTP/1.1 on Go's own package net/http: its FileServer for a folder, and a handler for the fixed answer; under TLS if it
// is given a certificate and its key.
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"

	"anello/peers/flags"
)

func main() {
	root := flag.String("root", "", "`DIR` to serve")
	certificate := flag.String("tls-cert", "", "`FILE` of a certificate (PEM) to serve TLS with")
	key := flag.String("tls-key", "", "`FILE` of its key (PEM)")
	// Package net/http chooses its buffers itself.
	arguments := flags.FromArguments(4096)
	if info, err := os.Stat(*root); err != nil || !info.IsDir() {
		fmt.Fprintf(os.Stderr, "--root %q: not a folder\n", *root)
		os.Exit(2)
	}
	if (*certificate == "") != (*key == "") {
		fmt.Fprintln(os.Stderr, "--tls-cert and --tls-key go together")
		os.Exit(2)
	}
	listener, err := net.Listen("tcp", arguments.Addr)
	if err != nil {
		fail(err)
	}
	http.Handle("/", http.FileServer(http.Dir(*root)))
	http.HandleFunc("/fixed", fixed)
	flags.AnnounceReady(listener.Addr().String(), "driver=epoll")
	if *certificate != "" {
		fail(http.ServeTLS(listener, nil, *certificate, *key))
	}
	fail(http.Serve(listener, nil))
}

func fixed(response http.ResponseWriter, _ *http.Request) {
	response.Header().Set("Content-Type", "text/plain")
	// What fails is the connection, which package net/http looks after.
	response.Write([]byte("Hello, World!"))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
