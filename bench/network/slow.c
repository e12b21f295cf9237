// slow: HTTP/1.1 clients that read slowly. Each connection requests a file, reads it at a limited rate, compares it, and
// requests it again.
//
// usage: slow ADDRESS PORT PATH FILE CONNECTIONS BYTES_PER_SECOND
//
// Runs until SIGTERM, and then prints
//     RESPONSES BYTES
// with the number of complete responses and the bytes read. A lost connection, a status other than 200, a wrong length or a
// wrong byte ends the program with status 1 and the cause on standard output.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TICKS_PER_SECOND = 10, MAX_HEAD_BYTES = 4096 };

struct connection {
  int fd;
  char head[MAX_HEAD_BYTES + 1];
  size_t head_bytes; // received bytes of the current response's head
  bool in_body;
  size_t body_bytes; // received bytes of the current response's body
};

static volatile sig_atomic_t is_stopped;
static char request[1024];
static char *expected;
static size_t expected_bytes;
static unsigned long long responses, total_bytes;

static void on_terminate(int signal) {
  (void)signal;
  is_stopped = 1;
}

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vprintf(format, arguments);
  va_end(arguments);
  printf("\n");
  exit(1);
}

static void send_request(struct connection *connection) {
  size_t length = strlen(request);
  connection->head_bytes = connection->body_bytes = 0;
  connection->in_body = false;
  // The send buffer has space for a request, because the previous one has been answered.
  if (send(connection->fd, request, length, MSG_NOSIGNAL) != (ssize_t)length) fail("send: %s", strerror(errno));
}

// Consumes the received bytes: the head is stored until its end, the body is compared.
static void consume(struct connection *connection, const char *data, size_t length) {
  while (length > 0 && !connection->in_body) {
    if (connection->head_bytes == MAX_HEAD_BYTES) fail("response head too long");
    connection->head[connection->head_bytes++] = *data++;
    length--;
    connection->head[connection->head_bytes] = 0;
    if (connection->head_bytes < 4 || strcmp(connection->head + connection->head_bytes - 4, "\r\n\r\n") != 0) continue;
    const char *field = strcasestr(connection->head, "\r\ncontent-length:");
    if (strncmp(connection->head, "HTTP/1.1 200", 12) != 0) fail("unexpected status: %.40s", connection->head);
    if (!field || strtoull(field + 17, NULL, 10) != expected_bytes) fail("unexpected length: %s", connection->head);
    connection->in_body = true;
  }
  if (length == 0) return;
  if (length > expected_bytes - connection->body_bytes) fail("excess bytes after a response");
  if (memcmp(expected + connection->body_bytes, data, length) != 0) fail("wrong bytes");
  connection->body_bytes += length;
  if (connection->body_bytes < expected_bytes) return;
  responses++;
  send_request(connection);
}

static void read_expected(const char *path) {
  FILE *file = fopen(path, "rb");
  struct stat status;
  if (!file || fstat(fileno(file), &status) != 0) fail("%s: %s", path, strerror(errno));
  expected_bytes = status.st_size;
  expected = malloc(expected_bytes);
  if (expected_bytes == 0 || !expected || fread(expected, 1, expected_bytes, file) != expected_bytes) fail("cannot read %s", path);
  fclose(file);
}

int main(int count, char **arguments) {
  if (count != 7) fail("usage: slow ADDRESS PORT PATH FILE CONNECTIONS BYTES_PER_SECOND");
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[2]))};
  if (inet_pton(AF_INET, arguments[1], &address.sin_addr) != 1) fail("invalid address %s", arguments[1]);
  snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", arguments[3], arguments[1]);
  read_expected(arguments[4]);
  size_t connection_count = strtoul(arguments[5], NULL, 10), tick_bytes = strtoul(arguments[6], NULL, 10) / TICKS_PER_SECOND;
  struct connection *connections = calloc(connection_count, sizeof *connections);
  char *buffer = malloc(tick_bytes);
  if (!connections || !buffer || tick_bytes == 0) fail("invalid number of connections or rate");
  signal(SIGTERM, on_terminate);

  for (size_t i = 0; i < connection_count; i++) {
    connections[i].fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connections[i].fd < 0 || connect(connections[i].fd, (struct sockaddr *)&address, sizeof address) != 0)
      fail("connect: %s", strerror(errno));
    send_request(&connections[i]);
  }
  while (!is_stopped) {
    struct timespec tick = {.tv_nsec = 1000000000 / TICKS_PER_SECOND};
    nanosleep(&tick, NULL);
    for (size_t i = 0; i < connection_count; i++) {
      // One read does not cross the end of a response: the next request is only sent after it.
      ssize_t received = recv(connections[i].fd, buffer, tick_bytes, MSG_DONTWAIT);
      if (received == 0) fail("connection closed by the server");
      if (received < 0 && errno != EAGAIN && errno != EINTR) fail("recv: %s", strerror(errno));
      if (received <= 0) continue;
      total_bytes += received;
      consume(&connections[i], buffer, received);
    }
  }
  printf("%llu %llu\n", responses, total_bytes);
  return 0;
}
