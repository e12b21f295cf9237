/* The command line that the peers in C and C++ understand, and what both do alike: listen, pin their threads to the
 * cores and say when they are ready.
 *
 *     libuv-echo --addr 127.0.0.1:7000 [--cores 0,2-3] [--buffer-bytes 4096]
 *
 * One loop on one thread for every core, each with a listener of its own on the one address (SO_REUSEPORT); with one
 * core, or none given, everything on the main thread. IPv4 only.
 */
#ifndef ANELLO_PEER_FLAGS_H
#define ANELLO_PEER_FLAGS_H

#include <netinet/in.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PEER_CORES_MAX = 1024,
    /* Connections that may wait to be accepted; the kernel takes the smaller of this and net.core.somaxconn. */
    PEER_BACKLOG = 4096,
    /* How long a server leaves its accept loop after a failed accept, so that it does not spin on an error that
     * lasts. */
    PEER_ACCEPT_RETRY_MS = 1,
};

struct peer_flags {
    struct sockaddr_in addr;
    int cores[PEER_CORES_MAX];
    size_t core_count;   /* 0: the scheduler chooses */
    size_t threads;      /* one for every core, at least one */
    size_t buffer_bytes; /* of one connection */
};

/* Reads the arguments; on a mistake prints the cause and exits with 2. Also ignores SIGPIPE: that a peer is gone is to
 * be an error of the write. */
struct peer_flags peer_flags_from_arguments(int argc, char **argv, size_t default_buffer_bytes);

/* A socket bound to flags->addr; the first one fixes a port that was 0. Exits with 1 if that fails. */
int peer_bound_socket(struct peer_flags *flags);

/* Runs the calling thread on the core of the given place in the list, if cores were given. Exits with 2 if that is
 * not allowed. */
void peer_pin(const struct peer_flags *flags, size_t place);

/* Tells whoever started the server that connections are accepted, and what it runs on, as in "driver=epoll". */
void peer_announce_ready(const struct peer_flags *flags, const char *about);

#ifdef __cplusplus
}
#endif

#endif
