// client: the load of an instruction count, in one thread on epoll, as closed loops: every connection sends a request, waits
// for all of its answer, checks it, and sends the next. TCP echo, or with a PATH, a GET of it by HTTP/1.1, whose answer is to
// be the same each time but for its Date.
//
// usage: client PORT CONNECTIONS BYTES SECONDS PID [PATH]
//
// Warms up for SECONDS / 2, then runs for SECONDS, each time longer where that is not 32 requests per connection (a fresh
// connection costs more: its peer acknowledges every segment), and prints
//     REQUESTS SERVER_NS
// where SERVER_NS is the time that all threads of process PID were on a CPU meanwhile. The server is given 5 seconds to
// begin to listen. A lost connection, a wrong byte or a stall of 2 seconds ends the run with status 1 and the cause on
// standard output, where the caller reads either.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PERIOD = 251, EVENTS = 1024, ROUNDS = 32, STALL_MS = 2000, LISTEN_MS = 5000, ANSWER_BYTES = 1 << 20 };

struct connection {
  int fd;
  bool waits_for_room; // the socket's send buffer is full
  size_t sent, received; // bytes of the current request
  const char *request;   // start of its bytes in the pattern
};

static size_t request_bytes, answer_bytes;
static char *pattern; // request_bytes + PERIOD bytes; a request begins anywhere in the first PERIOD
static unsigned next_start;
static char *answer; // of HTTP: what comes each time, but for the bytes of its date
static size_t date_start, date_end;

static void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vprintf(format, arguments);
  puts("");
  exit(1);
}

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * UINT64_C(1000000000) + now.tv_nsec;
}

// Time that the threads of the process have been on a CPU. They are not while this runs: there is one CPU.
static uint64_t cpu_ns(const char *pid) {
  char path[400];
  snprintf(path, sizeof path, "/proc/%s/task", pid);
  DIR *threads = opendir(path);
  if (!threads) fail("the server has ended");
  uint64_t sum = 0;
  for (struct dirent *thread; (thread = readdir(threads));) {
    if (thread->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "/proc/%s/task/%s/schedstat", pid, thread->d_name);
    FILE *file = fopen(path, "r");
    unsigned long long ran_ns;
    if (file && fscanf(file, "%llu", &ran_ns) == 1) sum += ran_ns;
    if (file) fclose(file);
  }
  closedir(threads);
  return sum;
}

static int connect_to(int port) {
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  for (int waited_ms = 0;; waited_ms++) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (fd < 0) fail("socket: %s", strerror(errno));
    if (connect(fd, (void *)&address, sizeof address) == 0) {
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      return fd;
    }
    if (errno != ECONNREFUSED || waited_ms == LISTEN_MS) fail("connect: %s", strerror(errno));
    close(fd);
    usleep(1000);
  }
}

// Every request begins elsewhere in the pattern, so that bytes of another connection or an earlier request are noticed.
static void begin_request(struct connection *connection) {
  connection->sent = connection->received = 0;
  connection->request = pattern + next_start;
  if (!answer) next_start = (next_start + 1) % PERIOD;
}

// Whether these bytes are not those of the answer from there on.
static bool is_wrong(const struct connection *connection, const char *bytes, size_t count) {
  size_t start = connection->received, end = start + count;
  if (!answer) return memcmp(bytes, connection->request + start, count);
  size_t before = end < date_start ? end : date_start, behind = start > date_end ? start : date_end;
  return (start < before && memcmp(bytes, answer + start, before - start)) ||
         (behind < end && memcmp(bytes + (behind - start), answer + behind, end - behind));
}

// Asks for the path once, to know what comes each time.
static void learn_answer(int port, const char *path) {
  char text[600];
  int fd = connect_to(port), length = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n", path, port);
  if (length >= (int)sizeof text) fail("the path is too long");
  pattern = strdup(text);
  request_bytes = length;
  answer = calloc(1, ANSWER_BYTES + 1);
  if (!pattern || !answer) fail("out of memory");
  if (send(fd, text, length, MSG_NOSIGNAL) != length) fail("send: %s", strerror(errno));
  for (char *end = NULL; !answer_bytes || date_end < answer_bytes;) {
    ssize_t received = recv(fd, answer + date_end, ANSWER_BYTES - date_end, 0); // date_end: as far as it has come
    if (received <= 0) fail("the first answer is cut: %.60s", answer);
    date_end += received;
    const char *bytes = strcasestr(answer, "\r\nContent-Length:");
    if (!end && (end = strstr(answer, "\r\n\r\n"))) {
      if (strncmp(answer, "HTTP/1.1 200 ", 13) || !bytes || bytes > end) fail("no answer to count: %.60s", answer);
      answer_bytes = end + 4 - answer + strtoul(bytes + 17, NULL, 10);
      if (answer_bytes > ANSWER_BYTES) fail("the answer is longer than %d bytes", ANSWER_BYTES);
    }
  }
  const char *date = strcasestr(answer, "\r\nDate:");
  date_start = date ? date - answer : answer_bytes;
  date_end = date ? strstr(date + 2, "\r\n") - answer : answer_bytes;
  close(fd);
}

// Sends what the socket takes; asks epoll for room only when it does not take all.
static void send_more(int epoll, struct connection *connection) {
  while (connection->sent < request_bytes) {
    ssize_t sent = send(connection->fd, connection->request + connection->sent, request_bytes - connection->sent,
                        MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EAGAIN) break;
    if (sent < 0) fail("send: %s", strerror(errno));
    connection->sent += sent;
  }
  bool waits = connection->sent < request_bytes;
  if (waits == connection->waits_for_room) return;
  struct epoll_event event = {.events = EPOLLIN | (waits ? EPOLLOUT : 0), .data.ptr = connection};
  epoll_ctl(epoll, EPOLL_CTL_MOD, connection->fd, &event);
  connection->waits_for_room = waits;
}

// Receives and checks; true when that completed a request and the next one began.
static bool receive_more(struct connection *connection, char *buffer) {
  ssize_t received = recv(connection->fd, buffer, answer_bytes - connection->received, MSG_DONTWAIT);
  if (received < 0 && errno == EAGAIN) return false;
  if (received < 0) fail("connection lost: %s", strerror(errno));
  if (received == 0) fail("connection lost: end of stream");
  if (is_wrong(connection, buffer, received)) fail("wrong bytes came back");
  connection->received += received;
  if (connection->received < answer_bytes) return false;
  begin_request(connection);
  return true;
}

// Drives all connections for the duration, and until enough requests are completed; returns how many were.
static uint64_t drive(int epoll, char *buffer, uint64_t duration_ns, uint64_t enough) {
  static struct epoll_event events[EVENTS];
  uint64_t requests = 0;
  for (uint64_t end_ns = now_ns() + duration_ns; requests < enough || now_ns() < end_ns;) {
    int ready = epoll_wait(epoll, events, EVENTS, STALL_MS);
    if (ready == 0) fail("no byte for %d ms", STALL_MS);
    for (int i = 0; i < ready; i++) {
      struct connection *connection = events[i].data.ptr;
      bool completed = events[i].events & ~EPOLLOUT && receive_more(connection, buffer);
      if (completed) requests++;
      if (completed || connection->waits_for_room) send_more(epoll, connection);
    }
  }
  return requests;
}

int main(int count, char **arguments) {
  if (count != 6 && count != 7)
    return fprintf(stderr, "usage: client PORT CONNECTIONS BYTES SECONDS PID [PATH]\n"), 2;
  int port = atoi(arguments[1]), connections = atoi(arguments[2]);
  request_bytes = answer_bytes = strtoul(arguments[3], NULL, 10);
  uint64_t duration_ns = strtod(arguments[4], NULL) * 1e9;
  const char *pid = arguments[5];

  int epoll = epoll_create1(0);
  struct connection *all = calloc(connections, sizeof *all);
  if (count == 7) {
    answer_bytes = 0;
    learn_answer(port, arguments[6]);
  } else {
    pattern = malloc(request_bytes + PERIOD);
    for (size_t i = 0; pattern && i < request_bytes + PERIOD; i++) pattern[i] = (i % PERIOD) * 31 + 7;
  }
  char *buffer = malloc(answer_bytes);
  if (epoll < 0 || !all || !buffer || !pattern) fail("out of memory or descriptors");

  for (int i = 0; i < connections; i++) {
    all[i].fd = connect_to(port);
    begin_request(&all[i]);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, all[i].fd, &event)) fail("epoll_ctl: %s", strerror(errno));
  }
  for (int i = 0; i < connections; i++) send_more(epoll, &all[i]);

  uint64_t enough = (uint64_t)connections * ROUNDS;
  drive(epoll, buffer, duration_ns / 2, enough);
  uint64_t before_ns = cpu_ns(pid), requests = drive(epoll, buffer, duration_ns, enough), after_ns = cpu_ns(pid);
  printf("%llu %llu\n", (unsigned long long)requests, (unsigned long long)(after_ns - before_ns));
  return 0;
}
