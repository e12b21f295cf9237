#define _GNU_SOURCE
#include "flags.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static void usage_error(const char *flag, const char *value, const char *reason) {
    fprintf(stderr, "invalid argument %s %s: %s\nusage: --addr ADDRESS:PORT [--cores LIST] [--buffer-bytes N]\n", flag,
            value, reason);
    exit(2);
}

static void fail(const char *action) {
    fprintf(stderr, "%s: %s\n", action, strerror(errno));
    exit(1);
}

/* Parses a whole number between text and end, at most max. Returns -1 if it is invalid. */
static long parse_number(const char *text, const char *end, long max) {
    char *parse_end;
    if (text == end || *text < '0' || *text > '9') {
        return -1;
    }
    errno = 0;
    long value = strtol(text, &parse_end, 10);
    return errno == 0 && parse_end == end && value <= max ? value : -1;
}

static void parse_addr(struct peer_flags *flags, const char *value) {
    char host[INET_ADDRSTRLEN];
    const char *colon = strrchr(value, ':');
    size_t length = colon ? (size_t)(colon - value) : sizeof host;
    long port = colon ? parse_number(colon + 1, value + strlen(value), 65535) : -1;
    if (port < 0 || length >= sizeof host) {
        usage_error("--addr", value, "expected ADDRESS:PORT");
    }
    memcpy(host, value, length);
    host[length] = '\0';
    flags->addr.sin_family = AF_INET;
    flags->addr.sin_port = htons((unsigned short)port);
    if (inet_pton(AF_INET, host, &flags->addr.sin_addr) != 1) {
        usage_error("--addr", value, "expected ADDRESS:PORT");
    }
}

static void parse_cores(struct peer_flags *flags, const char *value) {
    const char *part = value;
    flags->core_count = 0;
    for (;;) {
        const char *end = part + strcspn(part, ",");
        const char *dash = (const char *)memchr(part, '-', (size_t)(end - part));
        long first = parse_number(part, dash ? dash : end, CPU_SETSIZE - 1);
        long last = dash ? parse_number(dash + 1, end, CPU_SETSIZE - 1) : first;
        if (first < 0 || last < first) {
            usage_error("--cores", value, "expected a list of cores, e.g. 0,2-3");
        }
        for (long core = first; core <= last; core++) {
            if (flags->core_count == PEER_MAX_CORES) {
                usage_error("--cores", value, "too many cores");
            }
            flags->cores[flags->core_count++] = (int)core;
        }
        if (*end == '\0') {
            return;
        }
        part = end + 1;
    }
}

struct peer_flags peer_flags_from_arguments(int argc, char **argv, size_t default_buffer_bytes) {
    struct peer_flags flags;
    memset(&flags, 0, sizeof flags);
    flags.buffer_bytes = default_buffer_bytes;
    for (int index = 1; index < argc; index += 2) {
        const char *flag = argv[index], *value = argv[index + 1];
        if (value == NULL) {
            usage_error(flag, "", "missing value");
        } else if (strcmp(flag, "--addr") == 0) {
            parse_addr(&flags, value);
        } else if (strcmp(flag, "--cores") == 0) {
            parse_cores(&flags, value);
        } else if (strcmp(flag, "--buffer-bytes") == 0) {
            long bytes = parse_number(value, value + strlen(value), 1 << 30);
            if (bytes <= 0) {
                usage_error(flag, value, "expected a positive size");
            }
            flags.buffer_bytes = (size_t)bytes;
        } else {
            usage_error(flag, value, "unknown flag");
        }
    }
    if (flags.addr.sin_family != AF_INET) {
        usage_error("--addr", "", "missing flag");
    }
    flags.threads = flags.core_count > 0 ? flags.core_count : 1;
    signal(SIGPIPE, SIG_IGN);
    return flags;
}

int peer_bound_socket(struct peer_flags *flags) {
    int on = 1, reuse_port = flags->threads > 1;
    socklen_t length = sizeof flags->addr;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        setsockopt(listener, SOL_SOCKET, SO_REUSEPORT, &reuse_port, sizeof reuse_port) != 0 ||
        bind(listener, (const struct sockaddr *)&flags->addr, sizeof flags->addr) != 0 ||
        getsockname(listener, (struct sockaddr *)&flags->addr, &length) != 0) {
        fail("cannot bind to the address");
    }
    return listener;
}

void peer_pin(const struct peer_flags *flags, size_t index) {
    cpu_set_t set;
    if (flags->core_count == 0) {
        return;
    }
    CPU_ZERO(&set);
    CPU_SET(flags->cores[index], &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        fprintf(stderr, "cannot pin to core %d: %s (/proc/self/status lists the allowed cores)\n",
                flags->cores[index], strerror(errno));
        exit(2);
    }
}

void peer_announce_ready(const struct peer_flags *flags, const char *details) {
    char host[INET_ADDRSTRLEN];
    if (inet_ntop(AF_INET, &flags->addr.sin_addr, host, sizeof host) == NULL ||
        printf("ready addr=%s:%d %s\n", host, ntohs(flags->addr.sin_port), details) < 0 || fflush(stdout) != 0) {
        fail("cannot print the ready line");
    }
}
