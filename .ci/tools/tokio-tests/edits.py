"""Which tests of tokio 1.54.1 run on anello, and how they are edited. Keys are reasons, values regular expressions."""

# Areas of the tests, and the files of each.
AREAS = [("sync", "sync_"), ("net", "net_|tcp_|udp|uds_|unix_"), ("io", "io_|duplex|buffered"), ("fs", "fs"),
         ("process", "process"), ("signal", "signal"), ("time", "time_|test_clock"), ("task", "task_|join_|coop"),
         ("runtime", "")]

# Files that are not copied.
SKIPPED = {
    "other systems": ".*_(windows|emscripten.*|wasm|aio|named_pipe)",
    "unstable features of tokio":
        "dump|fs_uring.*|rt_(unstable|poll_callbacks|worker_index).*|task_(hooks|trace|builder).*|time_alt|tracing_.*",
    "macros of tokio": "macros_.*",
    "traits of tokio's io module and their adapters":
        "io_(async_read|buf_writer|chain|copy_buf|fill_buf|join|read.*|repeat|sink|take|util_empty|write.*)",
    "properties of types": "_require_full|async_send_sync",
}

# Regular expressions and replacements, in this order.
AS_FD = (r"\1impl std::os::fd::AsFd for \2 { fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> { unsafe "
         r"{ std::os::fd::BorrowedFd::borrow_raw(self.as_raw_fd()) } } }\n\1impl AsRawFd for \2 {")
EDITS = [
    (r'feature = "(?!io-uring|taskdump)[\w-]+"', "unix"),
    # The texts of messages differ.
    (r'#\[should_panic\(\s*expected = "(?:[^"\\]|\\.)*",?\s*\)\]', "#[should_panic]"),
    (r'#\[should_panic = ".*"\]', "#[should_panic]"),
    # The clock of a simulator is paused from the start.
    (r"#\[tokio::test\]\n(async fn \w+\(\) \{\n(?:(?!#\[).*\n)?)\s*(?:tokio::)?(?:time::)?pause\(\);\n",
     r"#[tokio::test(start_paused = true)]\n\1"),
    # Repetitions of the tests on threads, which anello's runtime does not have.
    (r"^( *mod (?:threaded_scheduler_\w+|spawn_local_on)) \{", r"\1 { #![cfg(any())]"),
    (r"AsyncFd::register", "AsyncFd::try_new"), (r"try_new_with_interest", "try_with_interest"),
    (r"AsyncFdRegisterError", "AsyncFdTryNewError"),
    (r"^( *)impl AsRawFd for (\S+) \{", AS_FD), (r"<T: AsRawFd>\(", "<T: std::os::fd::AsFd>("),
    (r"SockRef::from\(s\)", "SockRef::from(&*Box::leak(Box::new(unsafe "
     "{ std::os::fd::BorrowedFd::borrow_raw(std::os::fd::AsRawFd::as_raw_fd(s)) })))"),
    (r"\b(cred_[ab]\.[ugp]id)\(\)", r"\1"), (r"unsafe \{ libc::getpid\(\) \}", "std::process::id()"),
    (r"\.set_zero_linger\(\)", ".set_linger(Some(std::time::Duration::ZERO))"),
    (r"(SET|GET)_BUF_SIZE: u32", r"\1_BUF_SIZE: usize"),
    (r"(fn \$get_fn\(\) \{)", r"\1 let rt = tokio::runtime::Runtime::new().unwrap(); let _guard = rt.enter();"),
    (r"stream\.into_std\(\)(\?|\.unwrap\(\))", "stream.into_std().await.unwrap().0"),
    (r"file\.into_std\(\)\.await", "file.into_std().await.unwrap()"), (r"tokio::fs::FileTimes", "std::fs::FileTimes"),
    (r"Err\(err\) => err\.0", "Err(err) => err.read"),
    (r"fn poll_next\(self: Pin", "fn poll_next(mut self: Pin"),
    (r"\b(set|rt)\.spawn_local\(", r"\1.spawn("), (r"(spawn_on\(.*, )(\w+\.handle\(\))\)", r"\1&\2)"),
    (r"Some\(local\) => set\.spawn_local_on\(.*\),", "Some(_) => unreachable!(),"),
]

# Tests that are not counted, because they need something that anello does not have.
DROPPED = {
    "a runtime without I/O or time":
        "io_driver panics_when_io_disabled|(io|net|signal|time)_panic (async_fd|udp_socket|tcp|unix|signal|timeout)_.*|"
        "rt_basic timeout_panics_when_no_time_handle",
    "a runtime of several threads":
        "rt_threaded (many_oneshot_futures|multi_threadpool|spawn_shutdown|test_tuning)|"
        "time_rt timer_with_threaded_runtime|task_local_set join_local_future_elsewhere",
    "settings of the blocking pool and the threads":
        "rt_panic builder_(max_blocking_threads|worker_threads)_.*|rt_threaded max_blocking_threads_set_to_zero",
    "LocalSet, or a runtime that is not one":
        "rt_local test_spawn_local_in_(current|multi)_thread_runtime|task_join_set panic_in_multi_thread_runtime|"
        "task_local_set (drop_cancels|block_in_place_in_spawn_local_drop)_.*",
    "mpsc::Sender::send_timeout": "sync_mpsc recv_timeout",
    "the text of Debug and Display": "fs_file file_debug_fmt|fs_open_options open_options_custom_flags_linux|"
                                     "task_abort test_join_error_(debug|display)",
    "a descriptor -1, which AsFd excludes":
        "io_async_fd (register_error|register_with_interest_error|try_new|try_with_interest)",
}

# Reasons of tests that do not compile, and the names or messages that the compiler reports.
GROUPS = {
    "sending runtimes, handles or sockets to other threads": "Rc<.*|Arc|future cannot be sent .*",
    "LocalSet, or a runtime that is not one": ".*LocalSet|spawn",
    "pause and resume": "pause|resume",
    "settings and hooks of the builder, and names": "on_thread_.*|max_io_events_.*|(global_queue|event)_interval|name",
    "metrics of a scheduler with several threads": "global_queue_depth|worker_.*|num_.*",
    "Handle::enter and Handle::id": "enter|id|run",
    "ReadBuf, BufMut and vectored reads": "(try_)?(recv|read)_(buf.*|vectored)|mismatched types|as_pathname",
    "adapters of any reader or writer (BufReader, BufStream, copy, split, simplex, empty)":
        "with_capacity|BufStream|copy_.*|.*: (.*ByteStream|AsyncRecv)|lines|read|read_to_end|split|[Ss]implex.*|"
        "ReadHalf|empty",
    "File::set_max_buf_size, try_into_std, from_raw_fd": "(set_)?max_buf_size|try_into_std|from_raw_fd",
    "AsFd of a stream, AsyncFd without AsFd": ".*: AsFd",
}

# Tests that may fail. docs/guides/from-tokio.md describes the differences.
CURRENT = "current_thread_scheduler::"
KNOWN = {
    "blocking methods of tokio's types do not panic on a worker":
        "sync_(mpsc|panic|semaphore) .*(blocking_(send|lock|recv|read|write)_(async|panic_caller)|"
        "blocking_acquire(_many)?(_owned)?_in_async_context)",
    "tasks that are woken between two calls of block_on run after the first turn": "rt_basic no_extra_poll",
    "tokio's types consume no budget": "sync_mutex mutex_coop_drop_after_take_permit",
    "the first receive of a datagram does not wait": "coop_budget coop_budget_udp_send_recv",
    "streams report what the runtime has received; new ones are not assumed ready":
        "tcp_accept_ready (accepted_stream_|f).*|(tcp|uds)_stream poll_read_ready",
    "write returns before the bytes are sent, and the test then blocks the thread":
        "tcp_into_std tcp_into_std|tcp_split split",
    "TCP_NODELAY is on by default": "tcp_socket nodelay",
    "connecting a Unix socket completes in the first poll": "uds_stream epollhup",
    "sockets and child processes end with their runtime":
        "tcp_accept_ready later_reads_.*|process_change_of_runtime process_spawned_and_wait_in_different_runtime",
    "try_io always calls the function": "(io_async_fd|net_unix_pipe) try_io_(readable|writable)",
    "errors that contain the path have no raw_os_error": "net_unix_pipe fifo_simple_send_sender_first",
    "no runtime in a blocking closure, nor for spawn in Handle::block_on":
        f"rt_common {CURRENT}((sleep|socket|spawn)_from_blocking|spawn_one_from_block_on_called_on_handle)",
    "the threads for blocking closures, files and standard output belong to the process":
        f"rt_handle spawn_blocking_after_shutdown_.*|rt_handle_block_on {CURRENT}(.*_shutdown_before_started|"
        "spawn_blocking_after_shutdown_fails)|no_rt fs_panics_when_no_tokio_context",
    "a runtime can be dropped in a task of another":
        "task_blocking useful_panic_message_when_dropping_rt_in_rt",
    "the future of a panicked task is dropped after the panic": f"rt_common {CURRENT}panic_in_task",
    "task::id in the destructor of a result": "task_id task_id_output_destructor_handle_dropped_after_completion",
    "Sleep::is_elapsed reads the clock": "time_sleep immediate_sleep",
    "the end of the last listener restores the default action of a signal": "signal_drop_(recv|rt) .*",
    "a user other than root is needed": "fs_try_exists try_exists",
}
