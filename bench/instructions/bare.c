// bare: an epoll loop with the fewest system calls per connection, the reference for the cost of accepting and closing.
//
// usage: bare PORT [BODY]
//
// Without a BODY, echoes until EOF. With a BODY, reads a request, responds with HTTP/1.1 and the BODY, and closes the
// connection. Requests and responses must fit into the socket buffers. Any unexpected error ends the process.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_EVENTS = 1024, BUFFER_BYTES = 65536, BACKLOG = 4096 };

static int check(int result, const char *call) {
  if (result < 0) perror(call), exit(1);
  return result;
}

int main(int count, char **arguments) {
  static char buffer[BUFFER_BYTES], response[BUFFER_BYTES];
  static struct epoll_event events[MAX_EVENTS];
  if (count != 2 && count != 3) return fprintf(stderr, "usage: bare PORT [BODY]\n"), 2;
  int response_bytes = 0;
  if (count == 3)
    response_bytes = snprintf(response, sizeof response, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
                              strlen(arguments[2]), arguments[2]);
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons(atoi(arguments[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int listener = check(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), "socket");
  int epoll = check(epoll_create1(0), "epoll_create1");
  check(bind(listener, (void *)&address, sizeof address), "bind");
  check(listen(listener, BACKLOG), "listen");
  struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
  check(epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event), "epoll_ctl");
  for (;;) {
    int ready = check(epoll_wait(epoll, events, MAX_EVENTS, -1), "epoll_wait");
    for (int i = 0; i < ready; i++) {
      int fd = events[i].data.fd;
      if (fd == listener) {
        // Level-triggered: one call for each connection, and none that fails.
        event = (struct epoll_event){.events = EPOLLIN, .data.fd = check(accept4(listener, NULL, NULL, SOCK_NONBLOCK), "accept4")};
        check(epoll_ctl(epoll, EPOLL_CTL_ADD, event.data.fd, &event), "epoll_ctl");
        continue;
      }
      int received = check(recv(fd, buffer, sizeof buffer, 0), "recv");
      if (received > 0) {
        int length = count == 3 ? response_bytes : received;
        if (check(send(fd, count == 3 ? response : buffer, length, MSG_NOSIGNAL), "send") != length) return 1;
      }
      if (received == 0 || count == 3) check(close(fd), "close");
    }
  }
}
