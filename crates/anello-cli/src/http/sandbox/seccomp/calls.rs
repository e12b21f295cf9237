//! System calls made by a serving process, and the code that makes them, collected from the sources of the runtime, the
//! standard library and the C libraries (glibc, musl), and from traces.
//!
//! Calls made before the filter is installed are not listed: binding sockets, creating rings, pinning threads,
//! installing signal handlers.

use libc::c_long;

/// Allowed system calls.
pub enum Call {
    /// Allowed with any arguments.
    Any(&'static [c_long]),
    /// Allowed if all conditions of at least one alternative hold.
    Only(c_long, &'static [&'static [Condition]]),
}

/// A condition on an argument, given by its index.
pub enum Condition {
    Is(u8, u64),
    /// All of these bits are set.
    Has(u8, u64),
    /// None of these bits is set.
    Lacks(u8, u64),
    IsNull(u8),
    IsThisProcess(u8),
}

use Call::{Any, Only};
use Condition::{Has, Is, IsNull, IsThisProcess, Lacks};

/// Returns the lists of system calls that a server may make, depending on whether it uses io_uring or Unix socket
/// files.
pub fn lists(has_rings: bool, has_socket_files: bool) -> Vec<&'static [Call]> {
    let mut lists = vec![MEMORY, THREADS, SIGNALS_AND_EXIT, TIME, POLLING, SOCKETS, FILES, LEGACY_CALLS];
    if has_rings {
        lists.push(RINGS);
    }
    if has_socket_files {
        lists.extend([SOCKET_FILES, HANDOVER]);
    }
    lists
}

const EXECUTABLE: u64 = libc::PROT_EXEC as u64;

/// Allocator, thread stacks, buffers. Executable mappings are denied, because all code is already loaded.
const MEMORY: &[Call] = &[
    Any(&[libc::SYS_brk, libc::SYS_mremap, libc::SYS_munmap, libc::SYS_madvise]),
    Only(libc::SYS_mmap, &[&[Lacks(2, EXECUTABLE)]]),
    // Guard pages of stacks, growing arenas.
    Only(libc::SYS_mprotect, &[&[Lacks(2, EXECUTABLE)]]),
    // Number of page faults, to return the free memory of the heap.
    Any(&[libc::SYS_getrusage]),
];

/// Options of prctl(2): thread names, the auxiliary vector for the page size (PR_GET_AUXV, Linux 6.4), and memory
/// mapping names, which glibc sets (PR_SET_VMA).
const THREAD_NAME: u64 = libc::PR_SET_NAME as u64;
const AUXILIARY_VECTOR: u64 = 0x4155_5856;
const MEMORY_NAME: u64 = 0x5356_4d41;

/// Starting and stopping threads of the blocking pool, and synchronization.
const THREADS: &[Call] = &[
    // Threads only, no processes.
    Only(libc::SYS_clone, &[&[Has(0, libc::CLONE_THREAD as u64)]]),
    // Must be allowed here, because killing the process would take precedence over the ENOSYS result of the other
    // filter.
    Any(&[libc::SYS_clone3]),
    Any(&[libc::SYS_exit, libc::SYS_futex, libc::SYS_gettid]),
    Only(libc::SYS_prctl, &[&[Is(0, THREAD_NAME)], &[Is(0, AUXILIARY_VECTOR)], &[Is(0, MEMORY_NAME)]]),
    // Setup of thread-local storage and of the signal stack.
    Any(&[libc::SYS_rseq, libc::SYS_set_robust_list, libc::SYS_sigaltstack]),
    // Used by pthread_getattr_np(3) for the stack bounds, and by malloc for the number of arenas.
    Any(&[libc::SYS_sched_getaffinity]),
    // A worker pins itself again once its core is online again, and blocking threads leave the core of the worker that
    // started them.
    Only(libc::SYS_sched_setaffinity, &[&[Is(0, 0)]]),
    // Channels and locks yield while they spin, before they block.
    Any(&[libc::SYS_sched_yield]),
];

/// Signal handling and process exit, including exit after a panic or through abort(3).
const SIGNALS_AND_EXIT: &[Call] = &[
    Any(&[libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask, libc::SYS_rt_sigreturn]),
    // Continues system calls after SIGSTOP and SIGCONT.
    Any(&[libc::SYS_restart_syscall]),
    Any(&[libc::SYS_exit_group, libc::SYS_getpid]),
    // abort(3) uses tgkill(2) in glibc and tkill(2) in musl.
    Only(libc::SYS_tgkill, &[&[IsThisProcess(0)]]),
    Only(libc::SYS_tkill, &[&[Is(1, libc::SIGABRT as u64)]]),
    // Message that glibc prints before an abort; relative file names in a panic backtrace.
    Any(&[libc::SYS_writev, libc::SYS_getcwd]),
];

/// Clocks, if the vDSO lacks them, and random numbers.
const TIME: &[Call] = &[Any(&[libc::SYS_clock_gettime, libc::SYS_clock_nanosleep, libc::SYS_getrandom])];

/// Waiting for readiness, by epoll workers, by the metrics thread, and by the access log if its FIFO is full. The
/// eventfd reserves a descriptor, which is released when descriptors run out, so that clients can be rejected.
const POLLING: &[Call] = &[
    Any(&[libc::SYS_epoll_create1, libc::SYS_epoll_ctl, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2]),
    Any(&[libc::SYS_eventfd2, libc::SYS_ppoll]),
];

const SOCKET: u64 = libc::SOL_SOCKET as u64;
const TCP: u64 = libc::IPPROTO_TCP as u64;

/// FIONBIO and FIONREAD, whose types differ between C libraries.
const FIONBIO: u64 = 0x5421;
const FIONREAD: u64 = 0x541b;

/// Using accepted connections. Connecting and listening are denied.
const SOCKETS: &[Call] = &[
    Any(&[libc::SYS_accept4, libc::SYS_recvfrom, libc::SYS_sendto, libc::SYS_sendfile, libc::SYS_shutdown]),
    // Vectored writes of TLS records.
    Any(&[libc::SYS_sendmsg]),
    Any(&[libc::SYS_getsockname, libc::SYS_getpeername, libc::SYS_getsockopt]),
    // Options of the runtime's streams.
    Only(
        libc::SYS_setsockopt,
        &[
            &[Is(1, SOCKET), Is(2, libc::SO_OOBINLINE as u64)],
            &[Is(1, SOCKET), Is(2, libc::SO_LINGER as u64)],
            &[Is(1, SOCKET), Is(2, libc::SO_KEEPALIVE as u64)],
            &[Is(1, SOCKET), Is(2, libc::SO_RCVBUF as u64)],
            &[Is(1, SOCKET), Is(2, libc::SO_SNDBUF as u64)],
            // Timeouts of the handover channel.
            &[Is(1, SOCKET), Is(2, libc::SO_RCVTIMEO as u64)],
            &[Is(1, SOCKET), Is(2, libc::SO_SNDTIMEO as u64)],
            &[Is(1, TCP), Is(2, libc::TCP_NODELAY as u64)],
            &[Is(1, TCP), Is(2, libc::TCP_KEEPIDLE as u64)],
            // While sending a file.
            &[Is(1, TCP), Is(2, libc::TCP_CORK as u64)],
        ],
    ),
    // FIONBIO sets nonblocking mode for sendfile(2); FIONREAD returns the number of unread bytes.
    Only(libc::SYS_ioctl, &[&[Is(1, FIONBIO)], &[Is(1, FIONREAD)]]),
    Only(
        libc::SYS_fcntl,
        &[
            &[Is(1, libc::F_GETFL as u64)],
            &[Is(1, libc::F_SETFL as u64)],
            &[Is(1, libc::F_DUPFD_CLOEXEC as u64)],
            // musl repeats the flag after F_DUPFD_CLOEXEC.
            &[Is(1, libc::F_SETFD as u64), Has(2, libc::FD_CLOEXEC as u64)],
            // The standard library checks the descriptor before close(2) in debug builds.
            &[Is(1, libc::F_GETFD as u64)],
        ],
    ),
];

/// System call number of cachestat(2) (Linux 6.5).
const CACHESTAT: c_long = 451;

/// Served files, certificates, access log. Landlock restricts the paths.
const FILES: &[Call] = &[
    Any(&[libc::SYS_openat, libc::SYS_openat2, libc::SYS_close, libc::SYS_pread64, libc::SYS_preadv2]),
    // Also used for sockets and for the eventfds that wake other threads.
    Any(&[libc::SYS_read, libc::SYS_write]),
    Any(&[libc::SYS_lseek, CACHESTAT, libc::SYS_fstat, libc::SYS_newfstatat, libc::SYS_statx]),
    Any(&[libc::SYS_faccessat, libc::SYS_getdents64]),
    // Path of the executable, for a backtrace.
    Any(&[libc::SYS_readlinkat]),
    // Reads the open-file limit for the metrics; setting a limit is denied.
    Only(libc::SYS_prlimit64, &[&[Is(0, 0), IsNull(2)]]),
];

const PBUF_STATUS: u64 = rustix::io_uring::IoringRegisterOp::RegisterPbufStatus as u64;
const UNREGISTER_RING: u64 = rustix::io_uring::IoringRegisterOp::UnregisterRingFds as u64;

/// Using existing rings. Creating a ring is denied.
const RINGS: &[Call] = &[
    Any(&[libc::SYS_io_uring_enter]),
    // Shrinking the receive ring; unregistration when a ring is closed.
    Only(libc::SYS_io_uring_register, &[&[Is(1, PBUF_STATUS)], &[Is(1, UNREGISTER_RING)]]),
];

/// Removing Unix socket files at exit.
#[cfg(target_arch = "x86_64")]
const SOCKET_FILES: &[Call] = &[Any(&[libc::SYS_unlink, libc::SYS_unlinkat])];
#[cfg(target_arch = "aarch64")]
const SOCKET_FILES: &[Call] = &[Any(&[libc::SYS_unlinkat])];

/// Receiving descriptors and checking the peer's user during a handover.
const HANDOVER: &[Call] = &[Any(&[libc::SYS_geteuid, libc::SYS_recvmsg])];

/// Legacy variants of the calls above that the C libraries still use on this architecture.
#[cfg(target_arch = "x86_64")]
const LEGACY_CALLS: &[Call] = &[
    Any(&[libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_open, libc::SYS_stat, libc::SYS_lstat]),
    Any(&[libc::SYS_readlink]),
];
#[cfg(target_arch = "aarch64")]
const LEGACY_CALLS: &[Call] = &[];
