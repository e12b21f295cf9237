// client: closed-loop load generator for instruction counts, single-threaded on epoll. Each connection sends a request,
// waits for the complete response, checks it, and sends the next request. The protocol is TCP echo, with -u UDP echo,
// with -r the Redis protocol (batches of PIPELINE commands SET and batches of GET in turn, values of BYTES bytes) or,
// with a PATH, HTTP/1.1 requests whose responses must be identical except for their Date field: GET, or POST with a body of
// BYTES bytes if that is not 0.
//
// usage: client [-n | -w WORKERS] [-u | -o | -r PIPELINE] PORT CONNECTIONS BYTES SECONDS PID [PATH]
//
// With -o, each connection serves one request, and a new one takes its place. Without a PATH, the client closes it after
// the response. With a PATH, the request has the field "Connection: close", and the client waits for EOF.
//
// With -n, the client never preempts the server (SCHED_BATCH), as if it ran on another CPU.
//
// With -w, WORKERS processes run on the CPUs WORKERS + 1 to 2 * WORKERS, each with CONNECTIONS connections. The
// instruction MARK tells the QEMU plugin count.c when the run begins and ends, and SERVER_NS is 0.
//
// Warms up for SECONDS / 2, then runs for SECONDS. Both are extended to at least 32 requests per connection, because
// the peer of a new connection initially acknowledges every segment, which costs more. Prints
//     REQUESTS SERVER_NS
// where SERVER_NS is the CPU time of all threads of process PID during the run. The server must listen within 5
// seconds. A lost connection or datagram, a wrong byte or a stall of 2 seconds aborts the run with status 1 and the cause on
// standard output.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
  PERIOD = 251,
  MAX_EVENTS = 1024,
  MIN_ROUNDS = 32,
  MAX_WORKERS = 64,
  STALL_TIMEOUT_MS = 2000,
  LISTEN_TIMEOUT_MS = 5000,
  MAX_RESPONSE_BYTES = 1 << 20
};

struct connection {
  int fd;
  bool is_send_blocked; // the socket's send buffer is full
  size_t sent, received; // bytes of the current request and response transferred so far
  const char *request;   // start of the request in the pattern
  size_t batches;        // batches of Redis commands started
};

static int socket_type = SOCK_STREAM, port;
static size_t default_request_bytes, default_response_bytes;
static char *pattern; // request_bytes + PERIOD bytes; a request starts at any of the first PERIOD offsets
static unsigned next_start;
static char *response; // expected HTTP response; the bytes of its date are ignored
static size_t date_start, date_end;
static bool is_one_shot; // one request per connection
static size_t pipeline; // Redis commands per batch; 0 for the other protocols
static struct batch {
  char *request, *response;
  size_t request_bytes, response_bytes;
} batches[2]; // SET and GET

static volatile uint64_t *completed; // requests completed by this process

// A no-op that count.c recognizes.
#define MARK() __asm__ volatile(".byte 0x0f, 0x1f, 0x80, 'l', 'e', 'n', 'a'" ::: "memory")

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

// Returns the CPU time of all threads of the process. None of them is running during the call, as there is one CPU.
static uint64_t cpu_ns(const char *pid) {
  char path[400];
  snprintf(path, sizeof path, "/proc/%s/task", pid);
  DIR *threads = opendir(path);
  if (!threads) fail("the server has exited");
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

static int connect_to(void) {
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  for (int waited_ms = 0;; waited_ms++) {
    int fd = socket(AF_INET, socket_type, 0), one = 1;
    if (fd < 0) fail("socket: %s", strerror(errno));
    if (connect(fd, (void *)&address, sizeof address) == 0) {
      if (socket_type == SOCK_STREAM) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        return fd;
      }
      // A server that is not ready refuses an empty datagram; a ready one echoes it.
      if (send(fd, "", 0, 0) == 0 && recv(fd, (char[1]){0}, 1, 0) == 0) return fd;
    }
    if (errno != ECONNREFUSED || waited_ms == LISTEN_TIMEOUT_MS) fail("connect: %s", strerror(errno));
    close(fd);
    usleep(1000);
  }
}

// Starts each request at another offset in the pattern, so that bytes from another connection or request are detected.
static void start_request(struct connection *connection) {
  connection->sent = connection->received = 0;
  if (pipeline) {
    connection->batches++;
    return;
  }
  connection->request = pattern + next_start;
  if (!response) next_start = (next_start + 1) % PERIOD;
}

static const struct batch *batch_of(const struct connection *connection) { return &batches[connection->batches % 2]; }

// Returns true if the received bytes differ from the expected response.
static bool is_wrong(const struct connection *connection, const char *bytes, size_t count) {
  size_t start = connection->received, end = start + count;
  if (pipeline) return memcmp(bytes, batch_of(connection)->response + start, count);
  if (!response) return memcmp(bytes, connection->request + start, count);
  size_t head_end = end < date_start ? end : date_start, tail_start = start > date_end ? start : date_end;
  return (start < head_end && memcmp(bytes, response + start, head_end - start)) ||
         (tail_start < end && memcmp(bytes + (tail_start - start), response + tail_start, end - tail_start));
}

// Returns the length of the chunked body in the first `count` bytes, or 0 if it is incomplete.
static size_t chunked_bytes(const char *body, size_t count) {
  for (size_t start = 0; start < count;) {
    const char *line_end = memmem(body + start, count - start, "\r\n", 2);
    if (!line_end) return 0;
    size_t chunk = strtoul(body + start, NULL, 16);
    // Chunk size line, data and line end. No trailers are expected.
    start = line_end + 2 - body + chunk + 2;
    if (chunk == 0) return start <= count ? start : 0;
  }
  return 0;
}

// Returns the length of the response, or 0 if it is not known from its first `count` bytes.
static size_t response_length(size_t count) {
  const char *end = strstr(response, "\r\n\r\n");
  if (!end) return 0;
  const char *length = strcasestr(response, "\r\nContent-Length:");
  const char *chunked = strcasestr(response, "\r\nTransfer-Encoding: chunked");
  size_t head = end + 4 - response;
  if (strncmp(response, "HTTP/1.1 200 ", 13)) fail("unexpected response: %.60s", response);
  if (length && length < end) return head + strtoul(length + 17, NULL, 10);
  if (!chunked || chunked > end) fail("unexpected response: %.60s", response);
  size_t body = chunked_bytes(response + head, count - head);
  return body ? head + body : 0;
}

// Requests the path once and stores the expected response.
static void learn_response(const char *path, size_t body_bytes) {
  char head[600];
  int fd = connect_to(), length = snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n",
                                               body_bytes ? "POST" : "GET", path, port);
  if (length < (int)sizeof head && body_bytes)
    length += snprintf(head + length, sizeof head - length, "Content-Length: %zu\r\n", body_bytes);
  if (is_one_shot && length < (int)sizeof head)
    length += snprintf(head + length, sizeof head - length, "Connection: close\r\n");
  if (length + 2 >= (int)sizeof head) fail("the path is too long");
  strcpy(head + length, "\r\n");
  length += 2;
  pattern = malloc(length + body_bytes);
  response = calloc(1, MAX_RESPONSE_BYTES + 1);
  if (!pattern || !response) fail("out of memory");
  memcpy(pattern, head, length);
  memset(pattern + length, 'x', body_bytes);
  default_request_bytes = length + body_bytes;
  if (send(fd, pattern, default_request_bytes, MSG_NOSIGNAL) != (ssize_t)default_request_bytes)
    fail("send: %s", strerror(errno));
  size_t count = 0;
  while (!default_response_bytes || count < default_response_bytes) {
    ssize_t received = recv(fd, response + count, MAX_RESPONSE_BYTES - count, 0);
    if (received <= 0) fail("the first response is truncated: %.60s", response);
    count += received;
    if (!default_response_bytes) default_response_bytes = response_length(count);
    if (default_response_bytes > MAX_RESPONSE_BYTES) fail("the response exceeds %d bytes", MAX_RESPONSE_BYTES);
  }
  const char *date = strcasestr(response, "\r\nDate:");
  date_start = date ? date - response : default_response_bytes;
  date_end = date ? strstr(date + 2, "\r\n") - response : default_response_bytes;
  close(fd);
}

// Repeats a Redis command or reply.
static void repeat(const char *text, char **repeated, size_t *length) {
  size_t text_bytes = strlen(text);
  *length = text_bytes * pipeline;
  if (!(*repeated = malloc(*length))) fail("out of memory");
  for (size_t i = 0; i < pipeline; i++) memcpy(*repeated + i * text_bytes, text, text_bytes);
}

static void make_batches(int value_bytes) {
  char *value = malloc(value_bytes + 1), *set = malloc(value_bytes + 100), *reply = malloc(value_bytes + 100);
  if (!value || !set || !reply) fail("out of memory");
  memset(value, 'x', value_bytes);
  value[value_bytes] = 0;
  sprintf(set, "*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000042\r\n$%d\r\n%s\r\n", value_bytes, value);
  sprintf(reply, "$%d\r\n%s\r\n", value_bytes, value);
  repeat(set, &batches[1].request, &batches[1].request_bytes);
  repeat("+OK\r\n", &batches[1].response, &batches[1].response_bytes);
  repeat("*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000042\r\n", &batches[0].request, &batches[0].request_bytes);
  repeat(reply, &batches[0].response, &batches[0].response_bytes);
}

// Sends until the socket would block; registers for EPOLLOUT only in that case.
static void send_more(int epoll, struct connection *connection) {
  const char *request = pipeline ? batch_of(connection)->request : connection->request;
  size_t request_bytes = pipeline ? batch_of(connection)->request_bytes : default_request_bytes;
  while (connection->sent < request_bytes) {
    ssize_t sent = send(connection->fd, request + connection->sent, request_bytes - connection->sent,
                        MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EAGAIN) break;
    if (sent < 0) fail("send: %s", strerror(errno));
    connection->sent += sent;
  }
  bool is_blocked = connection->sent < request_bytes;
  if (is_blocked == connection->is_send_blocked) return;
  struct epoll_event event = {.events = EPOLLIN | (is_blocked ? EPOLLOUT : 0), .data.ptr = connection};
  epoll_ctl(epoll, EPOLL_CTL_MOD, connection->fd, &event);
  connection->is_send_blocked = is_blocked;
}

static void open_connection(int epoll, struct connection *connection) {
  connection->fd = connect_to();
  connection->is_send_blocked = false;
  start_request(connection);
  struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, connection->fd, &event)) fail("epoll_ctl: %s", strerror(errno));
}

// Receives and checks data. Returns true if a response is complete and the next request was started.
static bool receive_more(int epoll, struct connection *connection, char *buffer) {
  size_t response_bytes = pipeline ? batch_of(connection)->response_bytes : default_response_bytes;
  // An HTTP server closes the connection after its only response, which must not be followed by other bytes.
  bool expects_eof = is_one_shot && response;
  ssize_t received = recv(connection->fd, buffer, response_bytes + expects_eof - connection->received, MSG_DONTWAIT);
  if (received < 0 && errno == EAGAIN) return false;
  if (received < 0) fail("connection lost: %s", strerror(errno));
  bool is_eof = received == 0 && expects_eof && connection->received == response_bytes;
  if (received == 0 && !is_eof) fail("connection lost: EOF");
  if (connection->received + received > response_bytes) fail("bytes follow the response");
  if (socket_type == SOCK_DGRAM && (size_t)received != response_bytes) fail("a datagram came back with another length");
  if (is_wrong(connection, buffer, received)) fail("wrong bytes came back");
  connection->received += received;
  if (connection->received < response_bytes || (expects_eof && !is_eof)) return false;
  if (is_one_shot) {
    close(connection->fd);
    open_connection(epoll, connection);
  } else {
    start_request(connection);
  }
  return true;
}

// Drives all connections for the duration and until min_requests are completed. Returns the number of requests.
static uint64_t drive(int epoll, char *buffer, uint64_t duration_ns, uint64_t min_requests) {
  static struct epoll_event events[MAX_EVENTS];
  uint64_t requests = 0;
  for (uint64_t end_ns = now_ns() + duration_ns; requests < min_requests || now_ns() < end_ns;) {
    int ready = epoll_wait(epoll, events, MAX_EVENTS, STALL_TIMEOUT_MS);
    if (ready == 0) fail("no byte for %d ms", STALL_TIMEOUT_MS);
    for (int i = 0; i < ready; i++) {
      struct connection *connection = events[i].data.ptr;
      bool is_complete = events[i].events & ~EPOLLOUT && receive_more(epoll, connection, buffer);
      if (is_complete) *completed = requests += pipeline ? pipeline : 1;
      if (is_complete || connection->is_send_blocked) send_more(epoll, connection);
    }
  }
  return requests;
}

// Moves the calling process to a CPU.
static void run_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set)) fail("sched_setaffinity: %s", strerror(errno));
}

static uint64_t sum(const volatile uint64_t *values, int count) {
  uint64_t sum = 0;
  for (int i = 0; i < count; i++) sum += values[i * 8];
  return sum;
}

// Waits for 1 ms. Fails if a process has ended.
static void wait_briefly(void) {
  usleep(1000);
  if (waitpid(-1, NULL, WNOHANG) > 0) fail("a client failed");
}

// Starts the processes of -w. Returns in each of them. The calling process reports the requests of all, and exits.
static void start_workers(int workers, uint64_t min_requests) {
  // One cache line per process.
  volatile uint64_t *requests = mmap(NULL, MAX_WORKERS * 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (requests == MAP_FAILED) fail("mmap: %s", strerror(errno));
  for (int i = 0; i < workers; i++) {
    if (fork()) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_on(workers + 1 + i);
    completed = requests + i * 8;
    return;
  }
  run_on(0);
  // The warm-up ends once the slowest process has sent enough requests.
  for (int i = 0; i < workers; i++)
    while (requests[i * 8] < min_requests) wait_briefly();
  uint64_t before = sum(requests, workers), end = before + workers * min_requests;
  MARK();
  while (sum(requests, workers) < end) wait_briefly();
  uint64_t after = sum(requests, workers);
  MARK();
  printf("%llu 0\n", (unsigned long long)(after - before));
  exit(0);
}

int main(int count, char **arguments) {
  int workers = 0;
  if (count > 2 && !strcmp(arguments[1], "-w")) {
    workers = atoi(arguments[2]);
    if (workers < 1 || workers > MAX_WORKERS) fail("invalid number of workers");
    count -= 2;
    arguments += 2;
  }
  if (count > 1 && !strcmp(arguments[1], "-n")) {
    struct sched_param parameters = {0};
    if (sched_setscheduler(0, SCHED_BATCH, &parameters)) fail("sched_setscheduler: %s", strerror(errno));
    count--;
    arguments++;
  }
  if (count > 1 && !strcmp(arguments[1], "-u")) {
    socket_type = SOCK_DGRAM;
    count--;
    arguments++;
  }
  if (count > 1 && !strcmp(arguments[1], "-o")) {
    is_one_shot = true;
    count--;
    arguments++;
  }
  if (count > 2 && !strcmp(arguments[1], "-r")) {
    pipeline = strtoul(arguments[2], NULL, 10);
    count -= 2;
    arguments += 2;
  }
  if (count != 6 && count != 7)
    return fprintf(stderr, "usage: client [-n] [-u | -o | -r PIPELINE] PORT CONNECTIONS BYTES SECONDS PID [PATH]\n"), 2;
  port = atoi(arguments[1]);
  int connections = atoi(arguments[2]);
  default_request_bytes = default_response_bytes = strtoul(arguments[3], NULL, 10);
  uint64_t duration_ns = strtod(arguments[4], NULL) * 1e9;
  const char *pid = arguments[5];

  uint64_t min_requests = (uint64_t)connections * MIN_ROUNDS * (pipeline ? pipeline : 1), own_completed;
  completed = &own_completed;
  if (workers) {
    start_workers(workers, min_requests);
    duration_ns = UINT64_MAX / 4;
  }
  int epoll = epoll_create1(0);
  struct connection *all = calloc(connections, sizeof *all);
  if (count == 7) {
    size_t body_bytes = default_request_bytes;
    default_response_bytes = 0;
    learn_response(arguments[6], body_bytes);
  } else if (pipeline) {
    make_batches(default_request_bytes);
    size_t set = batches[1].response_bytes, get = batches[0].response_bytes;
    default_response_bytes = set > get ? set : get;
  } else {
    pattern = malloc(default_request_bytes + PERIOD);
    for (size_t i = 0; pattern && i < default_request_bytes + PERIOD; i++) pattern[i] = (i % PERIOD) * 31 + 7;
  }
  char *buffer = malloc(default_response_bytes + 1);
  if (epoll < 0 || !all || !buffer || (!pattern && !pipeline)) fail("out of memory or descriptors");

  for (int i = 0; i < connections; i++) open_connection(epoll, &all[i]);
  for (int i = 0; i < connections; i++) send_more(epoll, &all[i]);

  drive(epoll, buffer, duration_ns / 2, min_requests);
  uint64_t before_ns = cpu_ns(pid), requests = drive(epoll, buffer, duration_ns, min_requests), after_ns = cpu_ns(pid);
  printf("%llu %llu\n", (unsigned long long)requests, (unsigned long long)(after_ns - before_ns));
  return 0;
}
