//! Names of signals.

use std::fmt;

use signal_hook::consts;
use signal_hook::low_level::signal_name;

/// Kind of signal to catch.
///
/// ```
/// use anello::signal::SignalKind;
///
/// assert_eq!(SignalKind::from_raw(15), SignalKind::terminate());
/// assert_eq!(SignalKind::hangup().as_raw_value(), 1);
/// assert_eq!(SignalKind::interrupt().to_string(), "SIGINT");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SignalKind(i32);

/// Adds a function per signal. The example of each sends the signal to its own process.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:ident;)*) => {
        impl SignalKind {
            $($(#[$doc])*
            #[doc = concat!(
                "\n```\n",
                "# anello::example! {\n",
                "use anello::signal::{SignalKind, signal};\n\n",
                "let mut signals = signal(SignalKind::", stringify!($name), "())?;\n",
                "# signal_hook::low_level::raise(signal_hook::consts::", stringify!($number), ")?;\n",
                "// After another process has sent the signal:\n",
                "assert_eq!(signals.recv().await, Some(()));\n",
                "assert_eq!(SignalKind::", stringify!($name), "().to_string(), \"", stringify!($number), "\");\n",
                "# }\n",
                "```"
            )]
            #[must_use]
            pub const fn $name() -> Self {
                Self(consts::$number)
            })*
        }
    };
}

kinds! {
    /// Returns SIGALRM: sent when a timer of `alarm(2)` expires. By default, it terminates the process.
    alarm = SIGALRM;
    /// Returns SIGCHLD: sent when a child process exits, stops or continues. By default, it is ignored.
    child = SIGCHLD;
    /// Returns SIGHUP: sent when the terminal is closed; by convention, requests that a service reload its
    /// configuration. By default, it terminates the process.
    hangup = SIGHUP;
    /// Returns SIGINT: sent by the terminal on Ctrl-C. By default, it terminates the process.
    interrupt = SIGINT;
    /// Returns SIGIO: sent when a descriptor with `O_ASYNC` is ready. By default, it terminates the process.
    io = SIGIO;
    /// Returns SIGPIPE: sent on a write to a pipe or socket without a reader. Rust programs ignore it by default.
    pipe = SIGPIPE;
    /// Returns SIGQUIT: sent by the terminal on Ctrl-\. By default, it terminates the process with a core dump.
    quit = SIGQUIT;
    /// Returns SIGTERM: requests termination; the default signal of `kill(1)`. By default, it terminates the process.
    terminate = SIGTERM;
    /// Returns SIGUSR1: defined by the application. By default, it terminates the process.
    user_defined1 = SIGUSR1;
    /// Returns SIGUSR2: defined by the application. By default, it terminates the process.
    user_defined2 = SIGUSR2;
    /// Returns SIGWINCH: sent when the terminal is resized. By default, it is ignored.
    window_change = SIGWINCH;
}

impl SignalKind {
    /// Returns the signal with this number, which is not checked. [`signal`](super::signal()) fails for invalid ones.
    ///
    /// ```
    /// use anello::signal::SignalKind;
    ///
    /// assert_eq!(SignalKind::from_raw(15), SignalKind::terminate());
    /// assert_eq!(SignalKind::from_raw(34).to_string(), "signal 34");
    /// ```
    #[must_use]
    pub const fn from_raw(number: i32) -> Self {
        Self(number)
    }

    /// Returns the number of the signal.
    ///
    /// ```
    /// use anello::signal::SignalKind;
    ///
    /// assert_eq!(SignalKind::terminate().as_raw_value(), 15);
    /// ```
    #[must_use]
    pub const fn as_raw_value(self) -> i32 {
        self.0
    }
}

impl From<i32> for SignalKind {
    fn from(number: i32) -> Self {
        Self(number)
    }
}

impl From<SignalKind> for i32 {
    fn from(kind: SignalKind) -> Self {
        kind.0
    }
}

impl fmt::Display for SignalKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match signal_name(self.0) {
            Some(name) => formatter.write_str(name),
            None => write!(formatter, "signal {}", self.0),
        }
    }
}
