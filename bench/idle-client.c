// idle-client: opens idle TCP connections to a server on this machine, and closes random ones on request.
//
// usage: idle-client PORT CONNECTIONS KEPT SEED
//
// Prints "open" when all CONNECTIONS are open. After SIGUSR1, closes all but KEPT connections, which SEED selects at
// random, and prints "closed". Waits until it is killed. Each 25,000 connections use a source address of 127.1.0.0/16.
#include <arpa/inet.h>
#include <err.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PER_ADDRESS = 25000 };

static struct sockaddr_in address_of(unsigned host, int port) {
  return (struct sockaddr_in){
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {.s_addr = htonl(host)}};
}

static int open_connection(int port, int index) {
  int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
  if (fd < 0) err(1, "socket of connection %d", index);
  // Without the option, a port would have to be free for every destination.
  if (setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof yes)) err(1, "setsockopt");
  struct sockaddr_in source = address_of(0x7f010001 + index / PER_ADDRESS, 0), server = address_of(0x7f000001, port);
  if (bind(fd, (struct sockaddr *)&source, sizeof source)) err(1, "bind");
  if (connect(fd, (struct sockaddr *)&server, sizeof server)) err(1, "connect connection %d", index);
  return fd;
}

int main(int argc, char **argv) {
  if (argc != 5) errx(2, "usage: idle-client PORT CONNECTIONS KEPT SEED");
  int port = atoi(argv[1]), count = atoi(argv[2]), kept = atoi(argv[3]);
  unsigned short seed[3] = {atoi(argv[4])};
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit)) err(1, "getrlimit");
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit)) err(1, "setrlimit");
  sigset_t requested;
  sigemptyset(&requested);
  sigaddset(&requested, SIGUSR1);
  sigprocmask(SIG_BLOCK, &requested, NULL);
  int *connections = calloc(count, sizeof *connections), received;
  if (connections == NULL) err(1, "memory");
  for (int index = 0; index < count; index++) connections[index] = open_connection(port, index);
  puts("open");
  fflush(stdout);
  sigwait(&requested, &received);
  // Moves a random connection of the first `open` ones to their end, and closes it.
  for (int open = count; open > kept; open--) {
    int chosen = nrand48(seed) % open, fd = connections[chosen];
    connections[chosen] = connections[open - 1];
    close(fd);
  }
  puts("closed");
  fflush(stdout);
  for (;;) pause();
}
