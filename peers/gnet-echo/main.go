// TCP echo on gnet's event loops, based on the echo server in gnet's documentation: one loop per core, each with its
// own listener.
package main

import (
	"fmt"
	"os"

	"anello/peers/flags"
	"github.com/panjf2000/gnet/v2"
)

type echoHandler struct {
	gnet.BuiltinEventEngine
	addr string
}

// OnBoot prints the ready line; gnet calls it when the engine listens.
func (handler *echoHandler) OnBoot(gnet.Engine) gnet.Action {
	flags.AnnounceReady(handler.addr, "driver=epoll")
	return gnet.None
}

// OnTraffic echoes all received data; gnet buffers bytes that the peer does not accept immediately.
func (handler *echoHandler) OnTraffic(connection gnet.Conn) gnet.Action {
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
		err = gnet.Run(&echoHandler{addr: addr}, "tcp://"+addr,
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
