//! The I/O models and their names.

use std::fmt;
use std::str::FromStr;

/// I/O model: how the server waits until it can receive or send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Model {
    /// io_uring: multishot accept, multishot receive into provided buffers, one `io_uring_enter(2)` per turn. Linux
    /// 6.0.
    Uring,
    /// `epoll_wait(2)`, edge-triggered, with speculative system calls. Linux 2.6.17.
    Epoll,
    /// `poll(2)`, level-triggered.
    Poll,
    /// `select(2)`, level-triggered; supports only descriptors below 1024.
    Select,
    /// One blocking thread per connection.
    Threads,
}

impl Model {
    /// All models, fastest first.
    pub const ALL: [Model; 5] = [Model::Uring, Model::Epoll, Model::Poll, Model::Select, Model::Threads];

    /// Returns the name that [`FromStr`] parses and [`Display`](fmt::Display) writes.
    pub fn name(self) -> &'static str {
        match self {
            Model::Uring => "uring",
            Model::Epoll => "epoll",
            Model::Poll => "poll",
            Model::Select => "select",
            Model::Threads => "threads",
        }
    }
}

impl fmt::Display for Model {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Model {
    type Err = UnknownModel;

    fn from_str(name: &str) -> Result<Model, UnknownModel> {
        Model::ALL.into_iter().find(|model| model.name() == name).ok_or_else(|| UnknownModel(name.to_owned()))
    }
}

/// Error for a name that is not a [`Model`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownModel(String);

impl fmt::Display for UnknownModel {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "unknown model {:?} (expected uring, epoll, poll, select or threads)", self.0)
    }
}

impl std::error::Error for UnknownModel {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for model in Model::ALL {
            assert_eq!(model.to_string().parse(), Ok(model));
        }
        assert_eq!("kqueue".parse::<Model>(), Err(UnknownModel("kqueue".into())));
    }
}
