//! Published tables: their sources, the compared pairs of servers, and their claims.

use crate::judge::published::PublishedCell;
use crate::result::measure::Measure;

/// One published table.
#[derive(Debug, Clone, Copy)]
pub struct Source {
    /// Short name, which is also the name of the preset that repeats the comparison.
    pub key: &'static str,
    /// Publisher and year.
    pub title: &'static str,
    /// Machine and conditions of the measurement.
    pub measured_on: &'static str,
    /// Contents of the table.
    pub table: &'static str,
    /// Number of cores of the load generator per core of the server. The connections and the rate are divided equally
    /// among these cores. A run with one core of load is compared with the share of one core.
    pub load_cores: usize,
    /// Compared pairs of servers.
    pub pairs: &'static [Pair],
    /// Claims of the publication.
    pub claims: &'static [Claim],
}

/// Two published servers and their counterparts in the lab.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    /// Published server in the numerator of the ratio.
    pub server: &'static str,
    /// Published server in the denominator of the ratio.
    pub to: &'static str,
    /// Compared measures.
    pub measures: &'static [Measure],
    /// Names of the corresponding pairs of contenders.
    pub ours: &'static [(&'static str, &'static str)],
}

/// A claim in words about some cells of a table.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    /// The claim as a sentence, without the full stop.
    pub words: &'static str,
    /// Index of the pair in [`Source::pairs`].
    pub pair: usize,
    /// Compared measure.
    pub measure: Measure,
    /// Expected ratio.
    pub expects: Expectation,
    /// Returns `true` for the cells to which the claim applies.
    pub concerns: fn(&PublishedCell) -> bool,
}

/// Ratio that a claim expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expectation {
    /// The ratio is at least half as far from 1 as the published one.
    AsPublished,
    /// The first server is level with the second, or ahead of it by any factor.
    LevelOrAhead,
}

const DRIVERS: &[(&str, &str)] = &[("bare io_uring", "bare epoll"), ("anello io_uring", "anello epoll")];
const MONOIO: &[(&str, &str)] =
    &[("monoio", "tokio"), ("anello io_uring", "tokio"), ("anello epoll", "tokio")];
const GLOMMIO: &[(&str, &str)] = &[("glommio", "tokio")];
const GO: &[(&str, &str)] = &[("go-uring", "go net"), ("anello io_uring", "go net")];
const HTTP_DRIVERS: &[(&str, &str)] = &[("anello io_uring", "anello epoll")];
const GO_HTTP_EPOLL: &[(&str, &str)] = &[("anello epoll", "go http")];
const GO_HTTP_URING: &[(&str, &str)] = &[("anello io_uring", "go http")];
/// The published server was a patched nginx, which is no longer maintained. Another server on io_uring replaces it.
const NGINX: &[(&str, &str)] = &[("anello io_uring", "nginx")];
const NGINX_THREADS: &[(&str, &str)] = &[("nginx aio threads", "nginx")];
const SQPOLL: &[(&str, &str)] = &[
    ("go-uring sqpoll", "go-uring"),
    ("bare SQPOLL", "bare io_uring"),
    ("anello SQPOLL", "anello io_uring"),
];

/// Published tables of this crate.
pub const SOURCES: [Source; 7] = [
    Source {
        key: "frevib",
        title: "frevib, io_uring-echo-server (2020)",
        measured_on: "VMware, kernel 5.6.0-rc1, one isolated virtual CPU, rust_echo_bench, 60 s a cell; both servers \
                      crashed above 2000 clients",
        table: include_str!("../../../published/frevib_2020_echo.csv"),
        load_cores: 1,
        pairs: &[Pair { server: "io_uring", to: "epoll", measures: &[Measure::Rate], ours: DRIVERS }],
        claims: &[
            Claim {
                words: "At one connection io_uring and epoll are level",
                pair: 0,
                measure: Measure::Rate,
                expects: Expectation::AsPublished,
                concerns: |cell| cell.connections == 1,
            },
            Claim {
                words: "io_uring gains with the number of connections: 1.5 times the requests/s of epoll at 300, 1.7 \
                        times at 500",
                pair: 0,
                measure: Measure::Rate,
                expects: Expectation::AsPublished,
                concerns: |cell| cell.connections >= 300,
            },
        ],
    },
    Source {
        key: "joakimthun",
        title: "joakimthun, io_uring echo server (2023)",
        measured_on: "i7-12700, kernel 6.0.9, one core, rust_echo_bench; the epoll server hung at 1024 connections",
        table: include_str!("../../../published/joakimthun_2023_echo.csv"),
        load_cores: 1,
        pairs: &[Pair { server: "io_uring", to: "epoll", measures: &[Measure::Rate], ours: DRIVERS }],
        claims: &[
            Claim {
                words: "io_uring and epoll are level at 1 and 256 connections",
                pair: 0,
                measure: Measure::Rate,
                expects: Expectation::AsPublished,
                concerns: |cell| cell.connections <= 256,
            },
            Claim {
                words: "epoll is ahead at 512 connections",
                pair: 0,
                measure: Measure::Rate,
                expects: Expectation::AsPublished,
                concerns: |cell| cell.connections == 512,
            },
        ],
    },
    Source {
        key: "monoio-peak",
        title: "Monoio's benchmark, peak (2021)",
        measured_on: "two hosts, 2.3 GHz Xeon Gold 5118, 10 GbE, kernel 5.15",
        table: include_str!("../../../published/monoio_2021_peak.csv"),
        load_cores: 4,
        pairs: &[
            Pair { server: "monoio", to: "tokio", measures: &[Measure::Rate], ours: MONOIO },
            Pair { server: "glommio", to: "tokio", measures: &[Measure::Rate], ours: GLOMMIO },
        ],
        claims: &[
            Claim {
                words: "With one core and few connections Monoio answers fewer requests/s than Tokio",
                pair: 0,
                measure: Measure::Rate,
                expects: Expectation::AsPublished,
                concerns: |cell| cell.server_cores == 1 && cell.connections < 480,
            },
            Claim {
                words: "With one core and 560 connections or more Monoio answers 1.15 to 1.17 times the requests/s of \
                Tokio",
                pair: 0,
                measure: Measure::Rate,
                expects: Expectation::AsPublished,
                concerns: |cell| cell.server_cores == 1 && cell.connections >= 560,
            },
            Claim {
                words: "With several cores Monoio is ahead of Tokio, by up to 3.3 times at 16",
                pair: 0,
                measure: Measure::Rate,
                expects: Expectation::AsPublished,
                concerns: |cell| cell.server_cores > 1,
            },
            Claim {
                words: "With one core and 400 connections or more Glommio answers fewer requests/s than Tokio",
                pair: 1,
                measure: Measure::Rate,
                expects: Expectation::AsPublished,
                concerns: |cell| cell.server_cores == 1 && cell.connections > 400,
            },
        ],
    },
    Source {
        key: "monoio-fixed",
        title: "Monoio's benchmark, fixed rate (2021)",
        measured_on: "two hosts, 2.3 GHz Xeon Gold 5118, 10 GbE, kernel 5.15; the authors call the network at four \
                      cores unstable; latency there is the mean, here the median",
        table: include_str!("../../../published/monoio_2021_fixed.csv"),
        load_cores: 4,
        pairs: &[
            Pair { server: "monoio", to: "tokio", measures: &[Measure::Cpu, Measure::P50], ours: MONOIO },
            Pair { server: "glommio", to: "tokio", measures: &[Measure::Cpu, Measure::P50], ours: GLOMMIO },
        ],
        claims: &[
            Claim {
                words: "With one core and a fixed rate Monoio takes 5 to 16 % less CPU than Tokio",
                pair: 0,
                measure: Measure::Cpu,
                expects: Expectation::AsPublished,
                concerns: |cell| cell.server_cores == 1,
            },
            Claim {
                words: "With four cores and a fixed rate Monoio takes about half of Tokio's CPU",
                pair: 0,
                measure: Measure::Cpu,
                expects: Expectation::AsPublished,
                concerns: |cell| cell.server_cores == 4,
            },
            Claim {
                words: "With one core and a fixed rate Glommio takes more CPU than Tokio",
                pair: 1,
                measure: Measure::Cpu,
                expects: Expectation::AsPublished,
                concerns: |cell| cell.server_cores == 1,
            },
        ],
    },
    Source {
        key: "go-uring",
        title: "go-uring (2022)",
        measured_on: "machine not stated; two published columns carry the same heading (1000 connections, 128 bytes)",
        table: include_str!("../../../published/go_uring_2022_echo.csv"),
        load_cores: 1,
        pairs: &[
            Pair { server: "go-uring", to: "go net", measures: &[Measure::Rate], ours: GO },
            Pair { server: "go-uring sqpoll", to: "go-uring", measures: &[Measure::Rate], ours: SQPOLL },
        ],
        claims: &[
            Claim {
                words: "At 100 connections and fewer the io_uring reactor answers a quarter of the requests/s of Go's \
                net",
                pair: 0,
                measure: Measure::Rate,
                expects: Expectation::AsPublished,
                concerns: |cell| cell.connections <= 100,
            },
            Claim {
                words: "At 500 connections and more the io_uring reactor is level with Go's net or ahead of it",
                pair: 0,
                measure: Measure::Rate,
                expects: Expectation::LevelOrAhead,
                concerns: |cell| cell.connections >= 500,
            },
            Claim {
                words: "SQPOLL costs requests/s",
                pair: 1,
                measure: Measure::Rate,
                expects: Expectation::AsPublished,
                concerns: |_| true,
            },
        ],
    },
    Source {
        key: "chen622",
        title: "chen622, an HTTP server on io_uring and epoll (2020)",
        measured_on: "virtual machine with one core, kernel 5.7.8; JMeter, 100 users who arrive over 10 s and stay for \
                      30 s; 1 % of the fixed answers failed, but Go's; the size of the file is not stated, here it is \
                      6 KiB",
        table: include_str!("../../../published/uring_server_2020_http.csv"),
        load_cores: 1,
        pairs: &[
            Pair { server: "epoll", to: "go", measures: &[Measure::Rate], ours: GO_HTTP_EPOLL },
            Pair { server: "io_uring", to: "epoll", measures: &[Measure::Rate], ours: HTTP_DRIVERS },
            Pair { server: "io_uring", to: "go", measures: &[Measure::Rate], ours: GO_HTTP_URING },
        ],
        claims: &[
            Claim {
                words: "A server on epoll (its author's own) answers 0.38 times the requests/s of Go's net/http",
                pair: 0,
                measure: Measure::Rate,
                expects: Expectation::AsPublished,
                concerns: |_| true,
            },
            Claim {
                words: "A server on io_uring (its author's own) answers 0.38 times the requests/s of Go's net/http",
                pair: 2,
                measure: Measure::Rate,
                expects: Expectation::AsPublished,
                concerns: |_| true,
            },
            Claim {
                words: "The server is as fast on io_uring as on epoll",
                pair: 1,
                measure: Measure::Rate,
                expects: Expectation::AsPublished,
                concerns: |_| true,
            },
        ],
    },
    Source {
        key: "chen622-nginx",
        title: "chen622, nginx with io_uring, sendfile and aio (2020)",
        measured_on: "virtual machine with one core, kernel 5.7.8; JMeter, 300 users who arrive over 5 s and stay for \
                      30 s; a file of 300 KB, here 300 KiB",
        table: include_str!("../../../published/nginx_io_uring_2020_file.csv"),
        load_cores: 1,
        pairs: &[
            Pair { server: "io_uring", to: "sendfile", measures: &[Measure::Rate], ours: NGINX },
            Pair { server: "aio+threads", to: "sendfile", measures: &[Measure::Rate], ours: NGINX_THREADS },
        ],
        claims: &[
            Claim {
                words: "A server on io_uring (there a patched nginx) answers 0.93 times the requests/s of nginx with \
                sendfile",
                pair: 0,
                measure: Measure::Rate,
                expects: Expectation::AsPublished,
                concerns: |_| true,
            },
            Claim {
                words: "nginx that reads on threads answers 0.93 times the requests/s of nginx with sendfile",
                pair: 1,
                measure: Measure::Rate,
                expects: Expectation::AsPublished,
                concerns: |_| true,
            },
        ],
    },
];
