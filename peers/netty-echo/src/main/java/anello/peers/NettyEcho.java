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
 * TCP echo on Netty's native transports, after the echo server among Netty's examples: one event loop per core, the
 * listener and the connections on the same ones.
 *
 * <pre>netty-echo --addr 127.0.0.1:7000 [--cores 0,2-3] [--buffer-bytes N] [--transport io_uring|epoll]</pre>
 *
 * <p>Java cannot choose its cores: the script that starts it does, and {@code --cores} only says how many there are.
 */
public final class NettyEcho {
    private static final int BACKLOG = 4096;

    private InetSocketAddress addr;
    private int threads = 1;
    /** 0: Netty adapts the size to what arrives. */
    private int bufferBytes;
    private boolean uring = true;

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
        // What the JDK needs to write a log line it loads with the first one; without descriptors left, that would
        // end the event loop that wants to tell of it.
        new SimpleFormatter().format(new LogRecord(Level.WARNING, ""));
        echo.serve();
    }

    private void serve() throws InterruptedException {
        IoHandlerFactory factory = uring ? IoUringIoHandler.newFactory() : EpollIoHandler.newFactory();
        Class<? extends ServerChannel> listener =
                uring ? IoUringServerSocketChannel.class : EpollServerSocketChannel.class;
        EventLoopGroup loops = new MultiThreadIoEventLoopGroup(threads, factory);
        try {
            ServerBootstrap bootstrap = new ServerBootstrap()
                    .group(loops)
                    .channel(listener)
                    .option(ChannelOption.SO_BACKLOG, BACKLOG)
                    .childOption(ChannelOption.TCP_NODELAY, true)
                    .childOption(ChannelOption.ALLOW_HALF_CLOSURE, true)
                    .childHandler(new Echo());
            if (bufferBytes > 0) {
                bootstrap.childOption(ChannelOption.RECVBUF_ALLOCATOR, new FixedRecvByteBufAllocator(bufferBytes));
            }
            Channel server = bootstrap.bind(addr).sync().channel();
            InetSocketAddress bound = (InetSocketAddress) server.localAddress();
            System.out.printf("ready addr=%s:%d driver=%s%n",
                    bound.getAddress().getHostAddress(), bound.getPort(), uring ? "io_uring" : "epoll");
            server.closeFuture().sync();
        } finally {
            loops.shutdownGracefully();
        }
    }

    /**
     * Gives everything back; reads no more from a peer that does not take it, until it does. Without state of its own,
     * so that all connections share it.
     */
    @ChannelHandler.Sharable
    private static final class Echo extends ChannelInboundHandlerAdapter {
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

        /** The peer sends no more: what it has not taken yet is still sent. */
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
        for (int place = 0; place < arguments.length; place += 2) {
            String flag = arguments[place];
            if (place + 1 == arguments.length) {
                throw new IllegalArgumentException(flag + " needs a value");
            }
            String value = arguments[place + 1];
            switch (flag) {
                case "--addr" -> addr = parseAddr(value);
                case "--cores" -> threads = countCores(value);
                case "--buffer-bytes" -> bufferBytes = Math.max(1, number(flag, value));
                case "--transport" -> uring = parseTransport(value);
                default -> throw new IllegalArgumentException("unknown flag " + flag);
            }
        }
        if (addr == null) {
            throw new IllegalArgumentException("--addr is missing");
        }
    }

    private static InetSocketAddress parseAddr(String value) {
        int colon = value.lastIndexOf(':');
        if (colon < 0) {
            throw new IllegalArgumentException("--addr " + value + ": not ADDRESS:PORT");
        }
        return new InetSocketAddress(value.substring(0, colon), number("--addr", value.substring(colon + 1)));
    }

    private static int countCores(String list) {
        int count = 0;
        for (String part : list.split(",", -1)) {
            String[] ends = part.split("-", 2);
            int first = number("--cores", ends[0]);
            int last = number("--cores", ends[ends.length - 1]);
            if (last < first) {
                throw new IllegalArgumentException("--cores " + list + ": not a list of cores such as 0,2-3");
            }
            count += last - first + 1;
        }
        return count;
    }

    private static boolean parseTransport(String value) {
        return switch (value) {
            case "io_uring" -> true;
            case "epoll" -> false;
            default -> throw new IllegalArgumentException("--transport " + value + ": not io_uring or epoll");
        };
    }

    private static int number(String flag, String text) {
        try {
            return Integer.parseUnsignedInt(text) & Integer.MAX_VALUE;
        } catch (NumberFormatException cause) {
            throw new IllegalArgumentException(flag + ": " + text + " is not a number", cause);
        }
    }
}
