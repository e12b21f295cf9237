// TCP echo on gnet's event loops, after the echo server in gnet's documentation: one loop per core, each with a
// listener of its own.
package main

import (
	"fmt"
	"os"

	"anello/peers/flags"
	"github.com/panjf2000/gnet/v2"
)

type echo struct {
	gnet.BuiltinEventEngine
	addr string
}

// OnBoot is called when the engine listens.
func (e *echo) OnBoot(gnet.Engine) gnet.Action {
	flags.AnnounceReady(e.addr, "driver=epoll")
	return gnet.None
}

// OnTraffic gives everything that has arrived back; gnet keeps what the peer does not take at once.
func (e *echo) OnTraffic(connection gnet.Conn) gnet.Action {
	received, err := connection.Next(-1)
	if err == nil {
		_, err = connection.Write(received)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "connection:", err)
		return gnet.Close
	}
	return gnet.None
}

func main() {
	arguments := flags.FromArguments(64 << 10)
	addr, err := flags.FixedPort(arguments.Addr)
	if err == nil {
		err = gnet.Run(&echo{addr: addr}, "tcp://"+addr,
			gnet.WithNumEventLoop(arguments.Threads()),
			gnet.WithReusePort(true),
			gnet.WithTCPNoDelay(gnet.TCPNoDelay),
			gnet.WithReadBufferCap(arguments.BufferBytes))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
