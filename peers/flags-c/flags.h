/* Command line and shared functions of the C and C++ peers: listening, pinning threads to cores, and the ready line.
 *
 *     libuv-echo --addr 127.0.0.1:7000 [--cores 0,2-3] [--buffer-bytes 4096]
 *
 * A peer runs one event loop per core, each on its own thread and with its own listener on the shared address
 * (SO_REUSEPORT). With one core or none, it runs on the main thread. IPv4 only.
 */
#ifndef ANELLO_PEER_FLAGS_H
#define ANELLO_PEER_FLAGS_H

#include <netinet/in.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PEER_MAX_CORES = 1024,
    /* Maximum number of connections that wait to be accepted; the kernel lowers it to net.core.somaxconn. */
    PEER_BACKLOG = 4096,
    /* Pause of the accept loop after a failed accept, so that the loop does not spin on a persistent error. */
    PEER_ACCEPT_RETRY_MS = 1,
};

struct peer_flags {
    struct sockaddr_in addr;
    int cores[PEER_MAX_CORES];
    size_t core_count;   /* 0: not pinned */
    size_t threads;      /* one per core, at least one */
    size_t buffer_bytes; /* of one connection */
};

/* Parses the arguments. On an error, prints the cause and exits with status 2. Also ignores SIGPIPE, so that a closed
 * connection is an error of the write. */
struct peer_flags peer_flags_from_arguments(int argc, char **argv, size_t default_buffer_bytes);

/* Creates a socket bound to flags->addr. The first call replaces port 0 by the chosen port. Exits with status 1 on an
 * error. */
int peer_bound_socket(struct peer_flags *flags);

/* Pins the calling thread to the core with this index in the list, if cores were given. Exits with status 2 on an
 * error. */
void peer_pin(const struct peer_flags *flags, size_t index);

/* Prints the ready line: the server accepts connections. details are its further fields, e.g. "driver=epoll". */
void peer_announce_ready(const struct peer_flags *flags, const char *details);

#ifdef __cplusplus
}
#endif

#endif
