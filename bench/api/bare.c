// bare: hand-written loops, without a runtime, as the baseline for datagrams and proxies. See `compare` and
// `bench/other-client`.
//
// usage: bare udp-echo [IP:PORT]  echoes datagrams with epoll, recvmmsg and sendmmsg; prints addr=IP:PORT when ready.
//                                 It listens at PORT (default: a free one) of 127.0.0.1
//        bare udp-gso BYTES ...   a contender of `compare`: an operation sends BYTES bytes as one train of 1,200-byte
//                                 datagrams over loopback (UDP_SEGMENT) and receives them (UDP_GRO)
//        bare proxy IP:PORT       forwards TCP connections to PORT of 127.0.0.1 with io_uring; prints addr=IP:PORT
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
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

enum { ENTRIES = 512, BUFFERS = 1024, BUFFER_BYTES = 16384, MAX_FDS = 4096 };
enum { ACCEPT, RECEIVE, SEND };

static struct {
  int fd;
  unsigned *sq_tail, *sq_flags, *cq_head, *cq_tail, cq_mask, unsubmitted;
  struct io_uring_sqe *entries;
  struct io_uring_cqe *completions;
  struct io_uring_buf_ring *buffers;
  char *memory;
} ring;

static void provide(int id) {
  unsigned short tail = ring.buffers->tail;
  struct io_uring_buf *buffer = &ring.buffers->bufs[tail % BUFFERS];
  buffer->addr = (uintptr_t)ring.memory + id * BUFFER_BYTES;
  buffer->len = BUFFER_BYTES;
  buffer->bid = id;
  __atomic_store_n(&ring.buffers->tail, tail + 1, __ATOMIC_RELEASE);
}

static void *map(size_t bytes, int fd, off_t offset) {
  int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, fd, offset);
  check(memory != MAP_FAILED, "mmap");
  return memory;
}

static void open_ring(void) {
  struct io_uring_params p = {
      .cq_entries = 8 * ENTRIES,
      .flags = IORING_SETUP_CQSIZE | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN |
               IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_DEFER_TASKRUN | 1 << 16 /* IORING_SETUP_NO_SQARRAY */};
  int fd = syscall(SYS_io_uring_setup, ENTRIES, &p);
  check(fd >= 0, "io_uring_setup");
  char *queues = map(p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), fd, IORING_OFF_SQ_RING);
  ring.entries = map(p.sq_entries * sizeof(struct io_uring_sqe), fd, IORING_OFF_SQES);
  ring.sq_tail = (void *)(queues + p.sq_off.tail);
  ring.sq_flags = (void *)(queues + p.sq_off.flags);
  ring.cq_head = (void *)(queues + p.cq_off.head);
  ring.cq_tail = (void *)(queues + p.cq_off.tail);
  ring.completions = (void *)(queues + p.cq_off.cqes);
  ring.cq_mask = p.cq_entries - 1;
  ring.buffers = map(BUFFERS * sizeof(struct io_uring_buf), -1, 0);
  ring.memory = map(BUFFERS * BUFFER_BYTES, -1, 0);
  struct io_uring_buf_reg buffers = {.ring_addr = (uintptr_t)ring.buffers, .ring_entries = BUFFERS};
  check(syscall(SYS_io_uring_register, fd, IORING_REGISTER_PBUF_RING, &buffers, 1) == 0, "PBUF_RING");
  struct io_uring_rsrc_update update = {.offset = -1U, .data = fd};
  check(syscall(SYS_io_uring_register, fd, IORING_REGISTER_RING_FDS, &update, 1) == 1, "RING_FDS");
  ring.fd = update.offset;
  for (int id = 0; id < BUFFERS; id++) provide(id);
}

// Submits the entries and runs the task work that is pending; the kernel runs only about 20 items per call.
static void enter(unsigned min_complete) {
  unsigned flags = IORING_ENTER_GETEVENTS | IORING_ENTER_REGISTERED_RING;
  for (int call = 0; call == 0 || (call < 64 && __atomic_load_n(ring.sq_flags, __ATOMIC_RELAXED) & IORING_SQ_TASKRUN);
       call++) {
    int submitted = syscall(SYS_io_uring_enter, ring.fd, ring.unsubmitted, min_complete, flags, NULL, 0);
    check(submitted == (int)ring.unsubmitted || (submitted < 0 && errno == EINTR), "io_uring_enter");
    ring.unsubmitted = min_complete = 0;
  }
}

static void push(struct io_uring_sqe entry, int kind) {
  if (ring.unsubmitted == ENTRIES) enter(0);
  entry.user_data = (uint64_t)kind << 32 | entry.fd;
  ring.entries[*ring.sq_tail % ENTRIES] = entry;
  __atomic_store_n(ring.sq_tail, *ring.sq_tail + 1, __ATOMIC_RELEASE);
  ring.unsubmitted++;
}

static void receive(int fd) {
  push((struct io_uring_sqe){.opcode = IORING_OP_RECV, .fd = fd, .flags = IOSQE_BUFFER_SELECT,
                             .ioprio = IORING_RECV_MULTISHOT}, RECEIVE);
}

// Forwards connections to a backend on loopback. Exits if a socket buffer is full.
static void proxy(int backend_port) {
  static int peers[MAX_FDS], used[BUFFERS];
  static char has_ended[MAX_FDS];
  struct sockaddr_in backend = {
      .sin_family = AF_INET, .sin_port = htons(backend_port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof address;
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
  setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  check(bind(listener, (void *)&address, sizeof address) == 0 && listen(listener, 1024) == 0, "listen");
  check(getsockname(listener, (void *)&address, &length) == 0, "getsockname");
  open_ring();
  struct io_uring_sqe accept = {.opcode = IORING_OP_ACCEPT, .fd = listener, .ioprio = IORING_ACCEPT_MULTISHOT};
  push(accept, ACCEPT);
  printf("bare ready addr=127.0.0.1:%d\n", ntohs(address.sin_port));
  fflush(stdout);
  for (;;) {
    int used_count = 0;
    unsigned head = *ring.cq_head, tail;
    while (head != (tail = __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE)) && used_count < BUFFERS / 2) {
      struct io_uring_cqe completion = ring.completions[head++ & ring.cq_mask];
      __atomic_store_n(ring.cq_head, head, __ATOMIC_RELEASE);
      int fd = (int)completion.user_data, result = completion.res;
      switch (completion.user_data >> 32) {
      case ACCEPT: {
        int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        check(result >= 0 && result < MAX_FDS && server >= 0 && server < MAX_FDS, "accept");
        setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        check(connect(server, (void *)&backend, sizeof backend) == 0, "connect");
        peers[result] = server;
        peers[server] = result;
        has_ended[result] = has_ended[server] = 0;
        receive(result);
        receive(server);
        if (!(completion.flags & IORING_CQE_F_MORE)) push(accept, ACCEPT);
        break;
      }
      case RECEIVE:
        if (result > 0) {
          int id = used[used_count++] = completion.flags >> IORING_CQE_BUFFER_SHIFT;
          push((struct io_uring_sqe){.opcode = IORING_OP_SEND, .fd = peers[fd], .flags = IOSQE_CQE_SKIP_SUCCESS,
                                     .addr = (uintptr_t)ring.memory + id * BUFFER_BYTES, .len = result,
                                     .msg_flags = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_WAITALL}, SEND);
          if (!(completion.flags & IORING_CQE_F_MORE)) receive(fd);
        } else {  // EOF or an error: the receive from the peer ends as well.
          shutdown(peers[fd], SHUT_RDWR);
          has_ended[fd] = 1;
          if (has_ended[peers[fd]]) {
            // Not before the sends that are queued: the next socket gets the same number.
            push((struct io_uring_sqe){.opcode = IORING_OP_CLOSE, .fd = fd, .flags = IOSQE_CQE_SKIP_SUCCESS}, SEND);
            push((struct io_uring_sqe){.opcode = IORING_OP_CLOSE, .fd = peers[fd], .flags = IOSQE_CQE_SKIP_SUCCESS},
                 SEND);
          }
        }
        break;
      case SEND:
        check(result < 0 && result != -EAGAIN, "send");
      }
    }
    enter(head == *ring.cq_tail);
    // The kernel has executed the sends during the call.
    while (used_count) provide(used[--used_count]);
  }
}

int main(int count, char **arguments) {
  if (count >= 2 && !strcmp(arguments[1], "udp-echo")) {
    const char *port = count > 2 ? strrchr(arguments[2], ':') : NULL;
    udp_echo(port ? atoi(port + 1) : 0);
  }
  if (count > 2 && !strcmp(arguments[1], "proxy")) proxy(atoi(strrchr(arguments[2], ':') + 1));
  if (count < 3 || strcmp(arguments[1], "udp-gso")) return 3;
  size_t bytes = strtoul(arguments[2], NULL, 10);
  check(bytes > 0 && bytes <= MAX_TRAIN_BYTES, "BYTES");
  udp_gso(bytes);
  return 0;
}
