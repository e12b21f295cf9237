// HTTP/1.1 on Go's package net/http: its FileServer for a directory, and a handler for the fixed response. Uses TLS
// if a certificate and its key are given.
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
	certificate := flag.String("tls-cert", "", "`FILE` with the TLS certificate (PEM)")
	key := flag.String("tls-key", "", "`FILE` with the private key of the certificate (PEM)")
	// The buffer size is unused: package net/http chooses its buffers itself.
	arguments := flags.FromArguments(4096)
	if info, err := os.Stat(*root); err != nil || !info.IsDir() {
		fmt.Fprintf(os.Stderr, "invalid --root %q: not a directory\n", *root)
		os.Exit(2)
	}
	if (*certificate == "") != (*key == "") {
		fmt.Fprintln(os.Stderr, "--tls-cert and --tls-key require each other")
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
	// Package net/http handles errors of the connection.
	response.Write([]byte("Hello, World!"))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
