//! The system calls of a server that serves, with what needs them: found in the sources of the runtime, the standard
//! library and the C libraries (glibc, musl), and in traces.
//!
//! What is done before the seal needs no place here: listening, setting rings up, pinning threads, catching signals.

use libc::c_long;

use super::FilterOptions;

/// A system call that is allowed.
#[derive(Debug)]
pub enum Call {
    /// However it is called.
    Any(c_long),
    /// In any of these ways, each of which is all of its conditions.
    Only(c_long, &'static [&'static [Condition]]),
}

/// What an argument, counted from 0, must be.
#[derive(Debug)]
pub enum Condition {
    Is(u8, u64),
    /// All of these bits.
    Has(u8, u64),
    /// None of these bits.
    Lacks(u8, u64),
    IsNull(u8),
    IsThisProcess(u8),
}

use Call::{Any, Only};
use Condition::{Has, Is, IsNull, IsThisProcess, Lacks};

/// All that is allowed.
pub fn lists(options: FilterOptions) -> Vec<&'static [Call]> {
    let mut lists = vec![MEMORY, THREADS, SIGNALS_AND_EXIT, TIME, POLLING, SOCKETS, FILES, LEGACY_CALLS];
    if options.rings {
        lists.push(RINGS);
    }
    if options.socket_files {
        lists.extend([SOCKET_FILES, HANDOVER]);
    }
    lists
}

const EXECUTABLE: u64 = libc::PROT_EXEC as u64;

/// The allocator, stacks of threads, buffers. No memory becomes code: all of that is loaded.
const MEMORY: &[Call] = &[
    Any(libc::SYS_brk),
    Only(libc::SYS_mmap, &[&[Lacks(2, EXECUTABLE)]]),
    // Guard pages of stacks, arenas that grow.
    Only(libc::SYS_mprotect, &[&[Lacks(2, EXECUTABLE)]]),
    Any(libc::SYS_mremap),
    Any(libc::SYS_munmap),
    Any(libc::SYS_madvise),
];

/// Names of threads; the vector in which the kernel tells the size of a page (PR_GET_AUXV, Linux 6.4); names of memory,
/// which glibc gives (PR_SET_VMA).
const THREAD_NAME: u64 = libc::PR_SET_NAME as u64;
const AUXILIARY_VECTOR: u64 = 0x4155_5856;
const MEMORY_NAME: u64 = 0x5356_4d41;

/// Threads for work that blocks come and go; all threads wait for one another.
const THREADS: &[Call] = &[
    // Threads, but no processes.
    Only(libc::SYS_clone, &[&[Has(0, libc::CLONE_THREAD as u64)]]),
    // Answered with ENOSYS by the other filter, whose answer counts only if this one does not kill.
    Any(libc::SYS_clone3),
    Any(libc::SYS_exit),
    Any(libc::SYS_futex),
    Any(libc::SYS_gettid),
    Only(libc::SYS_prctl, &[&[Is(0, THREAD_NAME)], &[Is(0, AUXILIARY_VECTOR)], &[Is(0, MEMORY_NAME)]]),
    // A thread's own data at its start.
    Any(libc::SYS_rseq),
    Any(libc::SYS_set_robust_list),
    Any(libc::SYS_sigaltstack),
    // The attributes of a thread, asked for where its stack ends; how many arenas the allocator may have.
    Any(libc::SYS_sched_getaffinity),
    // Channels and locks, before they sleep.
    Any(libc::SYS_sched_yield),
];

/// Signals that are waited for, and the ends of the process: in order, by a panic, by an abort.
const SIGNALS_AND_EXIT: &[Call] = &[
    Any(libc::SYS_rt_sigaction),
    Any(libc::SYS_rt_sigprocmask),
    Any(libc::SYS_rt_sigreturn),
    // What goes on after SIGSTOP and SIGCONT.
    Any(libc::SYS_restart_syscall),
    Any(libc::SYS_exit_group),
    Any(libc::SYS_getpid),
    // abort(3): glibc to this process, musl to this thread.
    Only(libc::SYS_tgkill, &[&[IsThisProcess(0)]]),
    Only(libc::SYS_tkill, &[&[Is(1, libc::SIGABRT as u64)]]),
    // What glibc says before it aborts.
    Any(libc::SYS_writev),
    // The backtrace of a panic: names of files relative to the folder that the process runs in.
    Any(libc::SYS_getcwd),
];

/// Clocks, where the vDSO has none, and what nobody can guess.
const TIME: &[Call] =
    &[Any(libc::SYS_clock_gettime), Any(libc::SYS_clock_nanosleep), Any(libc::SYS_getrandom)];

/// Waiting: of workers on epoll, of the metrics' thread, of the log for a FIFO that is full.
const POLLING: &[Call] = &[
    // The metrics' thread may still set its own up.
    Any(libc::SYS_epoll_create1),
    Any(libc::SYS_epoll_ctl),
    Any(libc::SYS_epoll_pwait),
    Any(libc::SYS_epoll_pwait2),
    // A descriptor kept in reserve, to refuse clients with when there is no other.
    Any(libc::SYS_eventfd2),
    Any(libc::SYS_ppoll),
];

const SOCKET: u64 = libc::SOL_SOCKET as u64;
const TCP: u64 = libc::IPPROTO_TCP as u64;

/// FIONBIO and FIONREAD, of which each C library has another type.
const FIONBIO: u64 = 0x5421;
const FIONREAD: u64 = 0x541b;

/// Connections that others have begun: none is begun here, and nobody listens anew.
const SOCKETS: &[Call] = &[
    Any(libc::SYS_accept4),
    Any(libc::SYS_recvfrom),
    Any(libc::SYS_sendto),
    // Several slices at once: records of TLS.
    Any(libc::SYS_sendmsg),
    Any(libc::SYS_sendfile),
    Any(libc::SYS_shutdown),
    Any(libc::SYS_getsockname),
    Any(libc::SYS_getpeername),
    Any(libc::SYS_getsockopt),
    // The settings that streams of the runtime have.
    Only(
        libc::SYS_setsockopt,
        &[
            &[Is(1, SOCKET), Is(2, libc::SO_OOBINLINE as u64)],
            &[Is(1, SOCKET), Is(2, libc::SO_LINGER as u64)],
            &[Is(1, SOCKET), Is(2, libc::SO_KEEPALIVE as u64)],
            &[Is(1, SOCKET), Is(2, libc::SO_RCVBUF as u64)],
            &[Is(1, SOCKET), Is(2, libc::SO_SNDBUF as u64)],
            // Of those who talk when sockets are handed over.
            &[Is(1, SOCKET), Is(2, libc::SO_RCVTIMEO as u64)],
            &[Is(1, SOCKET), Is(2, libc::SO_SNDTIMEO as u64)],
            &[Is(1, TCP), Is(2, libc::TCP_NODELAY as u64)],
            &[Is(1, TCP), Is(2, libc::TCP_KEEPIDLE as u64)],
            // While a file is sent.
            &[Is(1, TCP), Is(2, libc::TCP_CORK as u64)],
        ],
    ),
    // A socket that must not wait for sendfile(2); whether bytes are left in one.
    Only(libc::SYS_ioctl, &[&[Is(1, FIONBIO)], &[Is(1, FIONREAD)]]),
    Only(
        libc::SYS_fcntl,
        &[
            &[Is(1, libc::F_GETFL as u64)],
            &[Is(1, libc::F_SETFL as u64)],
            &[Is(1, libc::F_DUPFD_CLOEXEC as u64)],
            // The standard library, built for debugging, before it closes one.
            &[Is(1, libc::F_GETFD as u64)],
        ],
    ),
];

/// cachestat(2), Linux 6.5.
const CACHESTAT: c_long = 451;

/// Files of the folder, certificates, the log. Which of them is Landlock's to say.
const FILES: &[Call] = &[
    Any(libc::SYS_openat),
    Any(libc::SYS_openat2),
    Any(libc::SYS_close),
    // Also messages, and the eventfds by which threads wake one another.
    Any(libc::SYS_read),
    Any(libc::SYS_write),
    Any(libc::SYS_pread64),
    Any(libc::SYS_preadv2),
    Any(libc::SYS_lseek),
    Any(CACHESTAT),
    Any(libc::SYS_fstat),
    Any(libc::SYS_newfstatat),
    Any(libc::SYS_faccessat),
    Any(libc::SYS_statx),
    Any(libc::SYS_getdents64),
    // The program's own name, for a backtrace.
    Any(libc::SYS_readlinkat),
    // The limit of descriptors, among the metrics: told, never set.
    Only(libc::SYS_prlimit64, &[&[Is(0, 0), IsNull(2)]]),
];

const FILES_UPDATE: u64 = rustix::io_uring::IoringRegisterOp::RegisterFilesUpdate as u64;
const UNREGISTER_RING: u64 = rustix::io_uring::IoringRegisterOp::UnregisterRingFds as u64;

/// Rings that are set up: none is set up anew.
const RINGS: &[Call] = &[
    Any(libc::SYS_io_uring_enter),
    // --registered-files, at each connection; and the end of a ring.
    Only(libc::SYS_io_uring_register, &[&[Is(1, FILES_UPDATE)], &[Is(1, UNREGISTER_RING)]]),
];

/// Files of Unix sockets: they are removed at the end.
#[cfg(target_arch = "x86_64")]
const SOCKET_FILES: &[Call] = &[Any(libc::SYS_unlink), Any(libc::SYS_unlinkat)];
#[cfg(target_arch = "aarch64")]
const SOCKET_FILES: &[Call] = &[Any(libc::SYS_unlinkat)];

/// With descriptors, when sockets are handed over, and to whom they may be.
const HANDOVER: &[Call] = &[Any(libc::SYS_geteuid), Any(libc::SYS_recvmsg)];

/// What newer calls above do as well, under the names by which the C libraries still call it here.
#[cfg(target_arch = "x86_64")]
const LEGACY_CALLS: &[Call] = &[
    Any(libc::SYS_epoll_wait),
    Any(libc::SYS_lstat),
    Any(libc::SYS_open),
    Any(libc::SYS_poll),
    Any(libc::SYS_readlink),
    Any(libc::SYS_stat),
];
#[cfg(target_arch = "aarch64")]
const LEGACY_CALLS: &[Call] = &[];
