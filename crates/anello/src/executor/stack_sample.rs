//! Backtraces of other threads.
//!
//! A signal makes the thread copy its registers and its stack to static memory. The caller then unwinds the copy and looks
//! up the names of the functions, which needs locks and memory that the interrupted thread may be using.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io;
use std::mem::{ManuallyDrop, zeroed};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::getpid;
use rustix::thread::{Pid, gettid};

use super::unwind::{REGISTERS, STACK_POINTER, StackCopy, registers, unwind};

/// Maximum number of bytes copied from a stack.
const MAX_STACK_BYTES: usize = 256 * 1024;

/// Time in which the thread must handle the signal.
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(1);

const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The copy that a thread makes. Used by one caller at a time.
struct Sample {
    /// `IDLE`, `WRITING`, `DONE`, or the number of the thread that is to make the copy.
    state: AtomicI32,
    /// Address up to which the stack is copied.
    stack_end: AtomicUsize,
    instruction: AtomicU64,
    registers: [AtomicU64; REGISTERS],
    /// Number of valid words in `stack`.
    stack_words: AtomicUsize,
    stack: [AtomicU64; MAX_STACK_BYTES / size_of::<u64>()],
}

const IDLE: i32 = 0;
/// The signal handler is making the copy.
const WRITING: i32 = -1;
const DONE: i32 = -2;

static SAMPLE: Sample = Sample {
    state: AtomicI32::new(IDLE),
    stack_end: AtomicUsize::new(0),
    instruction: AtomicU64::new(0),
    registers: [const { AtomicU64::new(0) }; REGISTERS],
    stack_words: AtomicUsize::new(0),
    stack: [const { AtomicU64::new(0) }; MAX_STACK_BYTES / size_of::<u64>()],
};

/// The signal whose handler is [`on_signal`], or 0 before the first backtrace.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Locked while a copy is unwound and named, which locks the loader's list of modules and the crate `backtrace`. A thread
/// that forks locks it, too: in the child, locks of a thread that does not exist there would never be released.
static UNWINDING: Mutex<()> = Mutex::new(());

thread_local! {
    /// The lock of [`UNWINDING`] while this thread forks. Without a destructor, so that a thread can fork while it exits.
    static FORKING: Cell<Option<ManuallyDrop<MutexGuard<'static, ()>>>> = const { Cell::new(None) };
}

/// Returns the functions that a thread of this process is executing, innermost first, one per line, up to the one whose
/// stack frame contains `stack_end`. Called by one thread at a time.
///
/// # Errors
/// Returns the reason as text if the thread does not respond.
pub(super) fn backtrace_of(target: Pid, stack_end: usize) -> Result<String, String> {
    let signal = installed_signal()?;
    let target = target.as_raw_nonzero().get();
    let timeout = || {
        format!(
            "the thread has not handled signal {signal} within {SAMPLE_TIMEOUT:?} (it blocks the signal, is stopped, or is \
             in an uninterruptible system call)"
        )
    };
    if SAMPLE.state.load(Ordering::Acquire) == WRITING {
        return Err(timeout());
    }
    SAMPLE.stack_end.store(stack_end, Ordering::Relaxed);
    SAMPLE.state.store(target, Ordering::Release);
    // SAFETY: has no preconditions. A thread that has reused the number of one that has exited handles the signal too.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, getpid().as_raw_nonzero().get(), target, signal) };
    if sent != 0 {
        let error = io::Error::last_os_error();
        SAMPLE.state.store(IDLE, Ordering::Relaxed);
        return Err(format!("cannot send signal {signal} to the thread: {error}"));
    }
    let deadline = Instant::now() + SAMPLE_TIMEOUT;
    while SAMPLE.state.load(Ordering::Acquire) != DONE {
        if Instant::now() >= deadline {
            // Fails if the handler has started.
            _ = SAMPLE.state.compare_exchange(target, IDLE, Ordering::Relaxed, Ordering::Relaxed);
            return Err(timeout());
        }
        thread::sleep(POLL_INTERVAL);
    }
    let registers = SAMPLE.registers.each_ref().map(|register| register.load(Ordering::Relaxed));
    let words = &SAMPLE.stack[..SAMPLE.stack_words.load(Ordering::Relaxed)];
    let stack = StackCopy { address: registers[STACK_POINTER], words };
    let _unwinding = lock_unwinding();
    Ok(named(&unwind(&registers, SAMPLE.instruction.load(Ordering::Relaxed), &stack)))
}

/// Returns the signal, after installing its handler in the first call: the last real-time signal without a handler.
fn installed_signal() -> Result<c_int, String> {
    let installed = SIGNAL.load(Ordering::Relaxed);
    if installed != 0 {
        return Ok(installed);
    }
    let signal = (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(|&signal| install_handler(signal));
    let signal = signal.ok_or("all real-time signals have handlers")?;
    // SAFETY: has no preconditions. The functions do not unwind, and a child inherits them. The only error is a lack of
    // memory: a child that is forked during a backtrace then cannot have backtraces of its own.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(after_fork_in_child)) };
    SIGNAL.store(signal, Ordering::Relaxed);
    Ok(signal)
}

fn lock_unwinding() -> MutexGuard<'static, ()> {
    UNWINDING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no other thread holds the locks that a backtrace needs.
extern "C" fn before_fork() {
    FORKING.set(Some(ManuallyDrop::new(lock_unwinding())));
}

extern "C" fn after_fork() {
    FORKING.take().map(ManuallyDrop::into_inner);
}

extern "C" fn after_fork_in_child() {
    // The thread that was making a copy does not exist in the child.
    SAMPLE.state.store(IDLE, Ordering::Relaxed);
    after_fork();
}

/// Returns `false` if the signal has a handler.
fn install_handler(signal: c_int) -> bool {
    // SAFETY: zeros are a valid value, an action without flags.
    let (mut previous, mut action) = unsafe { (zeroed::<libc::sigaction>(), zeroed::<libc::sigaction>()) };
    action.sa_sigaction = on_signal as *const () as usize;
    // Not on the alternate stack, which has room for little more than the signal frame.
    action.sa_flags = libc::SA_RESTART | libc::SA_SIGINFO;
    // SAFETY: the pointers are valid, and the handler has the type that the flags require. It is async-signal-safe.
    unsafe {
        libc::sigaction(signal, ptr::null(), &raw mut previous) == 0
            && previous.sa_sigaction == libc::SIG_DFL
            && libc::sigaction(signal, &raw const action, ptr::null_mut()) == 0
    }
}

/// Copies the registers and the stack of the interrupted functions, if this thread is to do so.
///
/// Async-signal-safe: it accesses only integers in static memory, and makes system calls. The kernel copies the stack,
/// because a task can run on a stack of its own, which `stack_end` does not bound.
///
/// # Safety
/// `context` must point to the interrupted context, as the kernel passes it to a signal handler.
unsafe extern "C" fn on_signal(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    let own = gettid().as_raw_nonzero().get();
    if SAMPLE.state.compare_exchange(own, WRITING, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    // SAFETY: the caller guarantees that the pointer is valid.
    let (values, instruction) = registers(unsafe { &*context.cast() });
    SAMPLE.instruction.store(instruction, Ordering::Relaxed);
    for (register, value) in SAMPLE.registers.iter().zip(values) {
        register.store(value, Ordering::Relaxed);
    }
    let start = values[STACK_POINTER] as usize;
    let len = SAMPLE.stack_end.load(Ordering::Relaxed).wrapping_sub(start).min(MAX_STACK_BYTES);
    let local = libc::iovec { iov_base: SAMPLE.stack.as_ptr().cast_mut().cast(), iov_len: len };
    let remote = libc::iovec { iov_base: ptr::without_provenance_mut(start), iov_len: len };
    // SAFETY: the kernel writes at most `len` bytes to atomic integers, which nothing else accesses in this state, and
    // checks that the stack is mapped. `errno` belongs to this thread.
    let copied = unsafe {
        let errno = libc::__errno_location();
        let interrupted_errno = *errno;
        let own = getpid().as_raw_nonzero().get();
        let copied = libc::syscall(
            libc::SYS_process_vm_readv,
            own,
            &raw const local,
            1_u64,
            &raw const remote,
            1_u64,
            0_u64,
        );
        *errno = interrupted_errno;
        copied
    };
    SAMPLE.stack_words.store(copied.max(0) as usize / size_of::<u64>(), Ordering::Relaxed);
    SAMPLE.state.store(DONE, Ordering::Release);
}

/// Returns the names of the functions that contain these addresses.
fn named(addresses: &[u64]) -> String {
    let mut text = String::new();
    for (index, &address) in addresses.iter().enumerate() {
        let mut is_known = false;
        // The function looks up the preceding byte, as for a return address.
        let next = ptr::without_provenance_mut::<c_void>(address as usize + 1);
        backtrace::resolve(next, |symbol| {
            let Some(name) = symbol.name() else { return };
            // An address has several names if functions are inlined.
            let number = if is_known { String::new() } else { format!("{index}:") };
            is_known = true;
            text += &format!("{number:>5} {name:#}\n");
            if let (Some(file), Some(line)) = (symbol.filename(), symbol.lineno()) {
                text += &format!("          at {}:{line}\n", file.display());
            }
        });
        if !is_known {
            text += &format!("{:>5} {address:#x}\n", format!("{index}:"));
        }
    }
    text
}
