package anello.peers;

import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.Unpooled;
import io.netty.channel.Channel;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandler;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.FixedRecvByteBufAllocator;
import io.netty.channel.IoHandlerFactory;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.ServerChannel;
import io.netty.channel.epoll.EpollIoHandler;
import io.netty.channel.epoll.EpollServerSocketChannel;
import io.netty.channel.socket.ChannelInputShutdownEvent;
import io.netty.channel.uring.IoUringIoHandler;
import io.netty.channel.uring.IoUringServerSocketChannel;
import java.net.InetSocketAddress;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.SimpleFormatter;

/**
 * TCP echo on Netty's native transports, based on the echo server of Netty's examples: one event loop per core. The
 * listener and the connections share the event loops.
 *
 * <pre>netty-echo --addr 127.0.0.1:7000 [--cores 0,2-3] [--buffer-bytes N] [--transport io_uring|epoll]</pre>
 *
 * <p>Java cannot pin itself to cores, so {@code start.sh} does. {@code --cores} only determines the number of threads.
 */
public final class NettyEcho {
    private static final int BACKLOG = 4096;

    private InetSocketAddress addr;
    private int threads = 1;
    /** 0: Netty adapts the size to the received data. */
    private int bufferBytes;
    private boolean usesUring = true;

    public static void main(String[] arguments) throws InterruptedException {
        NettyEcho echo = new NettyEcho();
        try {
            echo.parse(arguments);
        } catch (IllegalArgumentException cause) {
            System.err.println(cause.getMessage());
            System.err.println("usage: --addr ADDRESS:PORT [--cores LIST] [--buffer-bytes N]"
                    + " [--transport io_uring|epoll]");
            System.exit(2);
        }
        // The JDK loads its logging classes with the first log line. Without free descriptors, that would fail and stop
        // the event loop that logs. Load them now.
        new SimpleFormatter().format(new LogRecord(Level.WARNING, ""));
        echo.serve();
    }

    private void serve() throws InterruptedException {
        IoHandlerFactory factory = usesUring ? IoUringIoHandler.newFactory() : EpollIoHandler.newFactory();
        Class<? extends ServerChannel> listener =
                usesUring ? IoUringServerSocketChannel.class : EpollServerSocketChannel.class;
        EventLoopGroup loops = new MultiThreadIoEventLoopGroup(threads, factory);
        try {
            ServerBootstrap bootstrap = new ServerBootstrap()
                    .group(loops)
                    .channel(listener)
                    .option(ChannelOption.SO_BACKLOG, BACKLOG)
                    .childOption(ChannelOption.TCP_NODELAY, true)
                    .childOption(ChannelOption.ALLOW_HALF_CLOSURE, true)
                    .childHandler(new EchoHandler());
            if (bufferBytes > 0) {
                bootstrap.childOption(ChannelOption.RECVBUF_ALLOCATOR, new FixedRecvByteBufAllocator(bufferBytes));
            }
            Channel server = bootstrap.bind(addr).sync().channel();
            InetSocketAddress bound = (InetSocketAddress) server.localAddress();
            System.out.printf("ready addr=%s:%d driver=%s%n",
                    bound.getAddress().getHostAddress(), bound.getPort(), usesUring ? "io_uring" : "epoll");
            server.closeFuture().sync();
        } finally {
            loops.shutdownGracefully();
        }
    }

    /**
     * Echoes all data. Stops reading from a peer that does not read, until the peer reads again. Has no state, so all
     * connections share one instance.
     */
    @ChannelHandler.Sharable
    private static final class EchoHandler extends ChannelInboundHandlerAdapter {
        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            context.write(message, context.voidPromise());
        }

        @Override
        public void channelReadComplete(ChannelHandlerContext context) {
            context.flush();
        }

        @Override
        public void channelWritabilityChanged(ChannelHandlerContext context) {
            context.channel().config().setAutoRead(context.channel().isWritable());
            context.fireChannelWritabilityChanged();
        }

        /** The peer has shut down its write half: sends the unsent data, then closes. */
        @Override
        public void userEventTriggered(ChannelHandlerContext context, Object event) {
            if (event instanceof ChannelInputShutdownEvent) {
                context.writeAndFlush(Unpooled.EMPTY_BUFFER).addListener(ChannelFutureListener.CLOSE);
            }
            context.fireUserEventTriggered(event);
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            System.err.println("connection: " + cause.getMessage());
            context.close();
        }
    }

    private void parse(String[] arguments) {
        for (int index = 0; index < arguments.length; index += 2) {
            String flag = arguments[index];
            if (index + 1 == arguments.length) {
                throw new IllegalArgumentException("missing value for " + flag);
            }
            String value = arguments[index + 1];
            switch (flag) {
                case "--addr" -> addr = parseAddr(value);
                case "--cores" -> threads = countCores(value);
                case "--buffer-bytes" -> bufferBytes = Math.max(1, parseNumber(flag, value));
                case "--transport" -> usesUring = parseTransport(value);
                default -> throw new IllegalArgumentException("unknown flag " + flag);
            }
        }
        if (addr == null) {
            throw new IllegalArgumentException("missing flag --addr");
        }
    }

    private static InetSocketAddress parseAddr(String value) {
        int colon = value.lastIndexOf(':');
        if (colon < 0) {
            throw new IllegalArgumentException("invalid --addr " + value + ": expected ADDRESS:PORT");
        }
        return new InetSocketAddress(value.substring(0, colon), parseNumber("--addr", value.substring(colon + 1)));
    }

    private static int countCores(String list) {
        int count = 0;
        for (String part : list.split(",", -1)) {
            String[] bounds = part.split("-", 2);
            int first = parseNumber("--cores", bounds[0]);
            int last = parseNumber("--cores", bounds[bounds.length - 1]);
            if (last < first) {
                throw new IllegalArgumentException(
                        "invalid --cores " + list + ": expected a list of cores, e.g. 0,2-3");
            }
            count += last - first + 1;
        }
        return count;
    }

    private static boolean parseTransport(String value) {
        return switch (value) {
            case "io_uring" -> true;
            case "epoll" -> false;
            default -> throw new IllegalArgumentException(
                    "invalid --transport " + value + ": expected io_uring or epoll");
        };
    }

    private static int parseNumber(String flag, String text) {
        try {
            return Integer.parseUnsignedInt(text) & Integer.MAX_VALUE;
        } catch (NumberFormatException cause) {
            throw new IllegalArgumentException("invalid " + flag + ": " + text + " is not a number", cause);
        }
    }
}
