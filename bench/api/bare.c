// bare: hand-written loops, without a runtime, as the baseline for datagrams. See `compare` and `bench/other-client`.
//
// usage: bare udp-echo [IP:PORT]  echoes datagrams with epoll, recvmmsg and sendmmsg; prints addr=IP:PORT when ready.
//                                 It listens at PORT (default: a free one) of 127.0.0.1
//        bare udp-gso BYTES ...   a contender of `compare`: an operation sends BYTES bytes as one train of 1,200-byte
//                                 datagrams over loopback (UDP_SEGMENT) and receives them (UDP_GRO)
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 64, MAX_DATAGRAM_BYTES = 2048, SEGMENT_BYTES = 1200, MAX_TRAIN_BYTES = 65535 };

static void check(int is_ok, const char *call) {
  if (is_ok) return;
  perror(call);
  exit(1);
}

static int bound_socket(struct sockaddr_in *address, int port) {
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  check(fd >= 0, "socket");
  *address = (struct sockaddr_in){
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  check(bind(fd, (void *)address, sizeof *address) == 0, "bind");
  socklen_t length = sizeof *address;
  check(getsockname(fd, (void *)address, &length) == 0, "getsockname");
  return fd;
}

static int watching_epoll(int fd) {
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event event = {.events = EPOLLIN | EPOLLET};
  check(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll");
  return epoll;
}

static void udp_echo(int port) {
  struct sockaddr_in address;
  int fd = bound_socket(&address, port), epoll = watching_epoll(fd), bytes = 4 << 20;
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
  printf("bare ready addr=127.0.0.1:%d\n", ntohs(address.sin_port));
  fflush(stdout);

  static char memory[BATCH][MAX_DATAGRAM_BYTES];
  static struct sockaddr_in peers[BATCH];
  static struct iovec slices[BATCH];
  static struct mmsghdr messages[BATCH];
  for (int i = 0; i < BATCH; i++) {
    slices[i].iov_base = memory[i];
    messages[i].msg_hdr = (struct msghdr){.msg_name = &peers[i], .msg_iov = &slices[i], .msg_iovlen = 1};
  }
  for (;;) {
    struct epoll_event event;
    if (epoll_wait(epoll, &event, 1, -1) < 0) check(errno == EINTR, "epoll_wait");
    for (int received = BATCH; received == BATCH;) {
      for (int i = 0; i < BATCH; i++) {
        slices[i].iov_len = MAX_DATAGRAM_BYTES;
        messages[i].msg_hdr.msg_namelen = sizeof peers[i];
      }
      received = recvmmsg(fd, messages, BATCH, MSG_DONTWAIT, NULL);
      if (received < 0) check(errno == EAGAIN || errno == EINTR, "recvmmsg");
      for (int i = 0; i < received; i++) slices[i].iov_len = messages[i].msg_len;
      // A full send buffer cannot occur on loopback: the kernel delivers each datagram during the call.
      for (int sent = 0; sent < received;) {
        int count = sendmmsg(fd, messages + sent, received - sent, 0);
        check(count > 0, "sendmmsg");
        sent += count;
      }
    }
  }
}

static uint64_t clock_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec * UINT64_C(1000000000) + now.tv_nsec;
}

static void udp_gso(size_t bytes) {
  static char contents[MAX_TRAIN_BYTES], memory[MAX_TRAIN_BYTES];
  memset(contents, 7, sizeof contents);
  struct sockaddr_in sender_address, receiver_address;
  int sender = bound_socket(&sender_address, 0), receiver = bound_socket(&receiver_address, 0), one = 1, epoll;
  check(connect(sender, (void *)&receiver_address, sizeof receiver_address) == 0, "connect");
  check(setsockopt(receiver, SOL_UDP, UDP_GRO, &one, sizeof one) == 0, "UDP_GRO");
  epoll = watching_epoll(receiver);
  for (unsigned long long count; scanf("%llu", &count) == 1;) {
    uint64_t cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID), start_ns = clock_ns(CLOCK_MONOTONIC);
    while (count--) {
      union {
        char bytes[CMSG_SPACE(sizeof(uint16_t))];
        struct cmsghdr header;
      } control;
      struct iovec slice = {contents, bytes};
      struct msghdr message = {
          .msg_iov = &slice, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
      control.header = (struct cmsghdr){
          .cmsg_level = SOL_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(sizeof(uint16_t))};
      uint16_t segment_bytes = SEGMENT_BYTES;
      memcpy(CMSG_DATA(&control.header), &segment_bytes, sizeof segment_bytes);
      check(sendmsg(sender, &message, 0) == (ssize_t)bytes, "sendmsg");
      for (size_t received = 0; received < bytes;) {
        char segment_size[CMSG_SPACE(sizeof(int))];
        struct iovec space = {memory, sizeof memory};
        struct msghdr into = {
            .msg_iov = &space, .msg_iovlen = 1, .msg_control = segment_size, .msg_controllen = sizeof segment_size};
        ssize_t length = recvmsg(receiver, &into, MSG_DONTWAIT);
        if (length > 0) {
          received += length;
          continue;
        }
        check(errno == EAGAIN, "recvmsg");
        struct epoll_event event;
        check(epoll_wait(epoll, &event, 1, -1) > 0, "epoll_wait");
      }
    }
    cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns;
    printf("%llu %llu\n", (unsigned long long)cpu_ns,
           (unsigned long long)(clock_ns(CLOCK_MONOTONIC) - start_ns));
    fflush(stdout);
  }
}

int main(int count, char **arguments) {
  if (count >= 2 && !strcmp(arguments[1], "udp-echo")) {
    const char *port = count > 2 ? strrchr(arguments[2], ':') : NULL;
    udp_echo(port ? atoi(port + 1) : 0);
  }
  if (count < 3 || strcmp(arguments[1], "udp-gso")) return 3;
  size_t bytes = strtoul(arguments[2], NULL, 10);
  check(bytes > 0 && bytes <= MAX_TRAIN_BYTES, "BYTES");
  udp_gso(bytes);
  return 0;
}
