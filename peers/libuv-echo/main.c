/* TCP echo on libuv: a loop per core, each with a listener of its own.
 *
 * What has been received is written at once with uv_try_write. What the peer does not take goes to uv_write, and
 * nothing is read from the connection until that is done, so one buffer per connection is enough.
 */
#include <stdio.h>
#include <stdlib.h>
#include <uv.h>

#include "flags.h"

struct server {
    uv_loop_t loop;
    uv_tcp_t listener;
    uv_thread_t thread;
    const struct peer_flags *flags;
};

struct connection {
    uv_tcp_t tcp; /* its data points to the connection */
    uv_write_t write;
    size_t buffer_bytes;
    char buffer[];
};

static void check(int result, const char *what) {
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, uv_strerror(result));
        exit(1);
    }
}

static void release(uv_handle_t *handle) {
    free(handle->data);
}

static void end(struct connection *connection, int result) {
    if (result < 0 && result != UV_EOF) {
        fprintf(stderr, "connection: %s\n", uv_strerror(result));
    }
    if (!uv_is_closing((uv_handle_t *)&connection->tcp)) {
        uv_close((uv_handle_t *)&connection->tcp, release);
    }
}

static void give_buffer(uv_handle_t *handle, size_t suggested_bytes, uv_buf_t *buffer) {
    struct connection *connection = handle->data;
    (void)suggested_bytes;
    *buffer = uv_buf_init(connection->buffer, (unsigned)connection->buffer_bytes);
}

static void received(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer);

static void written(uv_write_t *write, int result) {
    struct connection *connection = write->data;
    if (result == 0) {
        result = uv_read_start((uv_stream_t *)&connection->tcp, give_buffer, received);
    }
    if (result < 0) {
        end(connection, result);
    }
}

static void received(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer) {
    struct connection *connection = stream->data;
    if (count < 0) {
        end(connection, (int)count);
        return;
    }
    if (count == 0) {
        return;
    }
    uv_buf_t rest = uv_buf_init(buffer->base, (unsigned)count);
    int sent = uv_try_write(stream, &rest, 1);
    if (sent < 0 && sent != UV_EAGAIN) {
        end(connection, sent);
        return;
    }
    if (sent == count) {
        return;
    }
    sent = sent < 0 ? 0 : sent;
    rest = uv_buf_init(buffer->base + sent, (unsigned)(count - sent));
    uv_read_stop(stream);
    int result = uv_write(&connection->write, stream, &rest, 1, written);
    if (result < 0) {
        end(connection, result);
    }
}

static void accepted(uv_stream_t *listener, int result) {
    struct server *server = listener->data;
    if (result < 0) {
        fprintf(stderr, "accept: %s\n", uv_strerror(result));
        return;
    }
    struct connection *connection = malloc(sizeof *connection + server->flags->buffer_bytes);
    if (connection == NULL) {
        check(UV_ENOMEM, "connection");
    }
    connection->buffer_bytes = server->flags->buffer_bytes;
    check(uv_tcp_init(&server->loop, &connection->tcp), "connection");
    connection->tcp.data = connection->write.data = connection;
    result = uv_accept(listener, (uv_stream_t *)&connection->tcp);
    if (result == 0) {
        result = uv_tcp_nodelay(&connection->tcp, 1);
    }
    if (result == 0) {
        result = uv_read_start((uv_stream_t *)&connection->tcp, give_buffer, received);
    }
    if (result < 0) {
        end(connection, result);
    }
}

static void run(void *argument) {
    struct server *server = argument;
    check(uv_run(&server->loop, UV_RUN_DEFAULT), "loop");
}

int main(int argc, char **argv) {
    struct peer_flags flags = peer_flags_from_arguments(argc, argv, 4096);
    struct server *servers = calloc(flags.threads, sizeof *servers);
    if (servers == NULL) {
        check(UV_ENOMEM, "loops");
    }
    for (size_t place = 0; place < flags.threads; place++) {
        struct server *server = &servers[place];
        server->flags = &flags;
        server->listener.data = server;
        check(uv_loop_init(&server->loop), "loop");
        check(uv_tcp_init(&server->loop, &server->listener), "listener");
        check(uv_tcp_open(&server->listener, peer_bound_socket(&flags)), "listener");
        check(uv_listen((uv_stream_t *)&server->listener, PEER_BACKLOG, accepted), "listen");
    }
    for (size_t place = 1; place < flags.threads; place++) {
        peer_pin(&flags, place); /* which the thread inherits */
        check(uv_thread_create(&servers[place].thread, run, &servers[place]), "thread");
    }
    peer_pin(&flags, 0);
    peer_announce_ready(&flags, "driver=epoll");
    run(&servers[0]);
    return 0;
}
