/* TCP echo on libuv: one loop per core, each with its own listener.
 *
 * Received data is written immediately with uv_try_write. The remaining bytes are passed to uv_write, and the
 * connection is not read until that write is complete, so one buffer per connection is enough.
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
    uv_tcp_t tcp; /* data: the connection */
    uv_write_t write;
    size_t buffer_bytes;
    char buffer[];
};

static void check(int result, const char *action) {
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", action, uv_strerror(result));
        exit(1);
    }
}

static void on_close(uv_handle_t *handle) {
    free(handle->data);
}

static void close_connection(struct connection *connection, int result) {
    if (result < 0 && result != UV_EOF) {
        fprintf(stderr, "connection: %s\n", uv_strerror(result));
    }
    if (!uv_is_closing((uv_handle_t *)&connection->tcp)) {
        uv_close((uv_handle_t *)&connection->tcp, on_close);
    }
}

static void on_alloc(uv_handle_t *handle, size_t suggested_bytes, uv_buf_t *buffer) {
    struct connection *connection = handle->data;
    (void)suggested_bytes;
    *buffer = uv_buf_init(connection->buffer, (unsigned)connection->buffer_bytes);
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer);

static void on_write(uv_write_t *write, int result) {
    struct connection *connection = write->data;
    if (result == 0) {
        result = uv_read_start((uv_stream_t *)&connection->tcp, on_alloc, on_read);
    }
    if (result < 0) {
        close_connection(connection, result);
    }
}

static void on_read(uv_stream_t *stream, ssize_t count, const uv_buf_t *buffer) {
    struct connection *connection = stream->data;
    if (count < 0) {
        close_connection(connection, (int)count);
        return;
    }
    if (count == 0) {
        return;
    }
    uv_buf_t unsent = uv_buf_init(buffer->base, (unsigned)count);
    int sent = uv_try_write(stream, &unsent, 1);
    if (sent < 0 && sent != UV_EAGAIN) {
        close_connection(connection, sent);
        return;
    }
    if (sent == count) {
        return;
    }
    sent = sent < 0 ? 0 : sent;
    unsent = uv_buf_init(buffer->base + sent, (unsigned)(count - sent));
    uv_read_stop(stream);
    int result = uv_write(&connection->write, stream, &unsent, 1, on_write);
    if (result < 0) {
        close_connection(connection, result);
    }
}

static void on_connection(uv_stream_t *listener, int result) {
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
        result = uv_read_start((uv_stream_t *)&connection->tcp, on_alloc, on_read);
    }
    if (result < 0) {
        close_connection(connection, result);
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
    for (size_t index = 0; index < flags.threads; index++) {
        struct server *server = &servers[index];
        server->flags = &flags;
        server->listener.data = server;
        check(uv_loop_init(&server->loop), "loop");
        check(uv_tcp_init(&server->loop, &server->listener), "listener");
        check(uv_tcp_open(&server->listener, peer_bound_socket(&flags)), "listener");
        check(uv_listen((uv_stream_t *)&server->listener, PEER_BACKLOG, on_connection), "listen");
    }
    for (size_t index = 1; index < flags.threads; index++) {
        peer_pin(&flags, index); /* the thread inherits the affinity */
        check(uv_thread_create(&servers[index].thread, run, &servers[index]), "thread");
    }
    peer_pin(&flags, 0);
    peer_announce_ready(&flags, "driver=epoll");
    run(&servers[0]);
    return 0;
}
