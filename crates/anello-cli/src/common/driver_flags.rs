//! Flags that select and tune the driver, shared by all commands that start a runtime.

use std::time::Duration;

use anello::{
    DisabledFeatures, DriverInfo, DriverKind, DriverOptions, Runtime, RuntimeBuilder, SubmissionPolling,
    ZeroCopy,
};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};

use super::{output, values};

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Driver")]
pub struct DriverFlags {
    /// Driver to use; ANELLO_DRIVER overrides it
    ///
    /// auto uses io_uring if its setup succeeds, and epoll otherwise. uring fails with the reason if io_uring is
    /// unavailable. epoll cannot be combined with io_uring flags.
    #[arg(long, default_value = "auto", value_parser = PossibleValuesParser::new(DRIVERS).try_map(|name| name.parse::<DriverKind>()))]
    driver: DriverKind,
    /// Poll for this long before sleeping (at most 1s, e.g. 50us); reduces latency at low load, at the cost of CPU time
    #[arg(long, value_name = "DURATION", value_parser = values::spin, default_value = "0s")]
    spin: Duration,
    /// Delay events by up to this long to handle several per wake-up (io_uring, Linux 6.12; at most 1s, e.g. 100us)
    ///
    /// Uses less CPU time per request while many clients are active, at the cost of latency. A worker that finds one
    /// event at a time, as with a single client, does not delay it. Has no effect with --sqpoll.
    #[arg(long, value_name = "DURATION", value_parser = values::batch_delay)]
    max_batch_delay: Option<Duration>,
    /// Use a kernel submission thread that sleeps after this many idle milliseconds (io_uring)
    ///
    /// Reduces latency with few connections. With dozens of connections, it increases the CPU time per request if it
    /// shares the core of the worker.
    #[arg(long, value_name = "IDLE_MS")]
    sqpoll: Option<u32>,
    /// Pin the kernel thread of --sqpoll to this core
    #[arg(long, value_name = "CORE", requires = "sqpoll")]
    sqpoll_core: Option<u32>,
    /// Use zero-copy sends for messages of at least this many bytes to other machines (io_uring); 0 disables them
    ///
    /// 0 saves CPU time where the kernel copies the bytes anyway, as on virtual interfaces.
    #[arg(long, value_name = "BYTES")]
    zero_copy_bytes: Option<usize>,
    /// Send messages of at least this many bytes immediately instead of queueing them for the next event loop iteration
    ///
    /// On io_uring, 0 lowers the latency of single responses a little, at the cost of a system call per message.
    ///
    /// Buffers of more than 4 KiB outside the receive ring are also sent immediately. Smaller messages are submitted in
    /// the next iteration; on epoll, only messages of up to 4096 bytes are queued, and only while many sockets are
    /// ready.
    #[arg(long, value_name = "BYTES")]
    direct_send_threshold_bytes: Option<usize>,
    /// Size of a receive buffer in bytes (io_uring); larger messages are received with poll and recv
    ///
    /// A higher value pays if many busy connections have messages that the default of 16 KiB does not hold.
    #[arg(long, value_name = "BYTES")]
    receive_buffer_bytes: Option<usize>,
    /// Maximum number of receive buffers per worker (io_uring); 64 are used at startup, and more on demand
    ///
    /// A lower value limits the memory of a worker.
    #[arg(long, value_name = "COUNT")]
    max_receive_buffers: Option<u32>,
    // For tests and comparisons: a feature that works is always worth using.
    /// Disable a kernel feature, as if the kernel were older (io_uring); can be repeated
    #[arg(long, value_name = "FEATURE", value_parser = FEATURES.map(|(name, _)| name), hide = true)]
    without: Vec<String>,
}

const DRIVERS: [&str; 3] = ["auto", "uring", "epoll"];

/// An io_uring flag: its name, and whether its value differs from the default.
type UringFlag = (&'static str, fn(&DriverFlags) -> bool);

const URING_FLAGS: [UringFlag; 7] = [
    ("max_batch_delay", |flags| flags.max_batch_delay.is_some()),
    ("sqpoll", |flags| flags.sqpoll.is_some()),
    ("sqpoll_core", |flags| flags.sqpoll_core.is_some()),
    ("zero_copy_bytes", |flags| flags.zero_copy_bytes.is_some()),
    ("receive_buffer_bytes", |flags| flags.receive_buffer_bytes.is_some()),
    ("max_receive_buffers", |flags| flags.max_receive_buffers.is_some()),
    ("without", |flags| !flags.without.is_empty()),
];

/// A kernel feature that `--without` can disable, and the corresponding option.
type Feature = (&'static str, fn(&mut DisabledFeatures) -> &mut bool);

const FEATURES: [Feature; 11] = [
    ("no-sqarray", |disabled| &mut disabled.no_sqarray),
    ("defer-taskrun", |disabled| &mut disabled.defer_taskrun),
    ("single-issuer", |disabled| &mut disabled.single_issuer),
    ("coop-taskrun", |disabled| &mut disabled.coop_taskrun),
    ("multishot-recv", |disabled| &mut disabled.multishot_receive),
    ("multishot-accept", |disabled| &mut disabled.multishot_accept),
    ("buffer-ring", |disabled| &mut disabled.buffer_ring),
    ("msg-ring", |disabled| &mut disabled.msg_ring),
    ("registered-ring", |disabled| &mut disabled.registered_ring),
    ("cqe-skip", |disabled| &mut disabled.cqe_skip),
    ("send-zc", |disabled| &mut disabled.zero_copy),
];

/// Rejects io_uring flags given together with `--driver epoll` on the command line, because epoll would ignore them.
pub fn check(matches: &ArgMatches) -> Result<(), clap::Error> {
    if let Some((_, matches)) = matches.subcommand() {
        return check(matches);
    }
    if !matches!(matches.try_get_one::<DriverKind>("driver"), Ok(Some(DriverKind::Epoll))) {
        return Ok(());
    }
    let flags = long_flags(|(flag, _)| {
        matches.try_contains_id(flag).is_ok() && matches.value_source(flag) == Some(ValueSource::CommandLine)
    });
    if flags.is_empty() {
        return Ok(());
    }
    let remedy = "remove them, or use --driver uring";
    let message = format!("--driver epoll cannot be used with the io_uring flags {flags} ({remedy})\n");
    Err(clap::Error::raw(ErrorKind::ArgumentConflict, message))
}

/// Returns the selected io_uring flags as written on the command line.
fn long_flags(is_selected: impl Fn(&UringFlag) -> bool) -> String {
    let flags = URING_FLAGS.iter().filter(|flag| is_selected(flag));
    flags.map(|(flag, _)| format!("--{}", flag.replace('_', "-"))).collect::<Vec<_>>().join(", ")
}

impl DriverFlags {
    pub fn builder(&self) -> RuntimeBuilder {
        Runtime::builder().driver(self.driver.clone()).options(self.options())
    }

    /// Reports why io_uring is not in use, and the flags that therefore have no effect.
    pub fn report_fallback(&self, driver: &DriverInfo) {
        if let Some(reason) = &driver.fallback_reason {
            output::print_stderr(format_args!("anello: io_uring unavailable, using epoll: {reason}"));
        }
        self.report_ignored(driver.name);
    }

    /// Reports io_uring flags that have no effect because the epoll driver is in use: `auto` fell back to it, or
    /// `ANELLO_DRIVER` overrides `--driver`.
    pub fn report_ignored(&self, driver: &str) {
        let flags = long_flags(|(_, is_given)| is_given(self));
        if driver == "epoll" && !flags.is_empty() {
            let remedy = "remove them, or see anello doctor";
            output::print_stderr(format_args!("anello: {flags} ignored by the epoll driver ({remedy})"));
        }
    }

    fn options(&self) -> DriverOptions {
        let mut options = DriverOptions::default();
        options.spin = self.spin;
        options.max_batch_delay = self.max_batch_delay.unwrap_or(options.max_batch_delay);
        options.submission_polling =
            self.sqpoll.map(|idle_ms| SubmissionPolling::default().idle_ms(idle_ms).core(self.sqpoll_core));
        options.zero_copy = match self.zero_copy_bytes {
            None => options.zero_copy,
            Some(0) => ZeroCopy::Never,
            Some(threshold_bytes) => ZeroCopy::RemoteOnly { threshold_bytes },
        };
        options.direct_send_threshold_bytes =
            self.direct_send_threshold_bytes.unwrap_or(options.direct_send_threshold_bytes);
        options.receive_buffer_bytes = self.receive_buffer_bytes.unwrap_or(options.receive_buffer_bytes);
        options.max_receive_buffers = self.max_receive_buffers.unwrap_or(options.max_receive_buffers);
        for (_, option) in FEATURES.iter().filter(|(name, _)| self.without.iter().any(|given| given == name))
        {
            *option(&mut options.testing.disabled_features) = true;
        }
        options
    }
}
