//! Counts the instructions needed to decode a request and to encode a response head, using valgrind's callgrind.
//!
//! usage: `h1_instructions`                   prints a table of all cases; needs `valgrind`
//!        `h1_instructions CASE ITERATIONS`   runs one case, for callgrind or another profiler
//!
//! Times on a shared machine are noisy; instruction counts are not. Each case runs twice with different numbers of
//! iterations, and the difference in instructions is divided by the difference in iterations. Process startup is
//! therefore not counted.

use std::error::Error;
use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::{env, io};

use anello_http::h1::{
    BodyLength, Decoder, Event, FieldBlock, FieldName, Head, HttpDate, Limits, RequestContext, ResponseHead,
};

/// The request that `wrk` sends.
const WRK: &str = "GET / HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n";
/// The request that curl sends.
const CURL: &str =
    "GET /index.html HTTP/1.1\r\nHost: localhost:8080\r\nUser-Agent: curl/8.14.1\r\nAccept: */*\r\n\r\n";
/// A request of 120 bytes with four fields.
const FOUR: &str = "GET /hello.txt HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: loader/1.0\r\nAccept: */*\r\n\
     Connection: keep-alive\r\n\r\n";
/// The request that a browser sends.
const BROWSER: &str = "GET /assets/site.css HTTP/1.1\r\nHost: www.example.com\r\n\
     User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r\nAccept: text/css,*/*;q=0.1\r\n\
     Accept-Language: en-US,en;q=0.5\r\nAccept-Encoding: gzip, deflate, br, zstd\r\nConnection: keep-alive\r\n\
     Referer: http://www.example.com/\r\nSec-Fetch-Dest: style\r\nSec-Fetch-Mode: no-cors\r\n\
     Sec-Fetch-Site: same-origin\r\nIf-None-Match: \"5f3a-61b2\"\r\nPriority: u=2\r\n\r\n";

/// Iteration counts for the two runs of a case.
const ITERATIONS: [u64; 2] = [1_000, 11_000];

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let result = match &arguments[..] {
        [] => table(),
        [case, iterations] => run_case(case, iterations),
        _ => Err("usage: h1_instructions [CASE ITERATIONS]".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("h1_instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

type Case = (&'static str, &'static str, fn(u64));

const CASES: [Case; 15] = [
    ("decode-wrk", "decode a GET with 1 field, 40 bytes", |n| decode(WRK, WRK, n)),
    ("decode-curl", "decode a GET with 3 fields, 90 bytes", |n| decode(CURL, CURL, n)),
    ("decode-four", "decode a GET with 4 fields, 120 bytes", |n| decode(FOUR, FOUR, n)),
    ("decode-browser", "decode a GET with 12 fields, 490 bytes", |n| decode(BROWSER, BROWSER, n)),
    ("decode-new-wrk", "decode-wrk, but with fields that differ between requests", |n| {
        decode(WRK, &with_other_host(WRK), n)
    }),
    ("decode-new-curl", "decode-curl, but with fields that differ between requests", |n| {
        decode(CURL, &with_other_host(CURL), n)
    }),
    ("decode-new-four", "decode-four, but with fields that differ between requests", |n| {
        decode(FOUR, &with_other_host(FOUR), n)
    }),
    ("decode-new-browser", "decode-browser, but with fields that differ between requests", |n| {
        decode(BROWSER, &with_other_host(BROWSER), n)
    }),
    ("decode-pipelined", "decode one of 16 pipelined GET requests of 40 bytes", decode_pipelined),
    ("decode-cut", "decode a GET request of 90 bytes that arrives in two parts", decode_split),
    ("look-up", "look up 8 absent fields in a head with 4 fields", look_up),
    ("encode-fields", "encode a 200 with Date, Content-Length and 3 fields", encode_fields),
    ("encode-block", "encode a 200 with Date, Content-Length and a block of 3", encode_block),
    ("encode-304", "encode a 304 with Date and ETag", encode_not_modified),
    ("date", "encode a date", date),
];

fn run_case(case: &str, iterations: &str) -> Result<(), Box<dyn Error>> {
    let names = || CASES.map(|(name, ..)| name).join(", ");
    let entry = CASES.iter().find(|(name, ..)| *name == case);
    let (.., run) = entry.ok_or_else(|| format!("unknown case {case} (available: {})", names()))?;
    run(iterations.parse()?);
    Ok(())
}

fn table() -> Result<(), Box<dyn Error>> {
    println!("instructions  case");
    for (name, description, _) in CASES {
        let [fewer, more] = [count(name, ITERATIONS[0])?, count(name, ITERATIONS[1])?];
        println!("{:>12}  {description} ({name})", (more - fewer) / (ITERATIONS[1] - ITERATIONS[0]));
    }
    Ok(())
}

/// Returns the number of instructions executed by this program for a case.
fn count(case: &str, iterations: u64) -> Result<u64, Box<dyn Error>> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env::current_exe()?)
        .args([case, &iterations.to_string()])
        .output()
        .map_err(|error| {
            io::Error::new(error.kind(), format!("cannot run valgrind: {error} (install it)"))
        })?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.split("Collected :").nth(1).and_then(|rest| rest.split_whitespace().next());
    Ok(collected
        .ok_or_else(|| format!("no instruction count in the output of callgrind:\n{text}"))?
        .parse()?)
}

/// Returns the same request for another host.
fn with_other_host(text: &str) -> String {
    text.replacen("Host: ", "Host: x", 1).replacen(":8080", ":808", 1)
}

/// Decodes two requests alternately and recycles each head.
fn decode(first: &str, second: &str, iterations: u64) {
    let mut decoder = Decoder::new(Limits { max_requests_per_connection: u64::MAX, ..Limits::default() });
    for _ in 0..iterations / 2 {
        for text in [first, second] {
            let mut input = black_box(text.as_bytes());
            decode_one(&mut decoder, &mut input);
        }
    }
}

fn decode_one(decoder: &mut Decoder, input: &mut &[u8]) {
    if let Ok(Some(Event::Head(head))) = decoder.decode(input) {
        black_box(&head);
        decoder.recycle(head);
    }
    black_box(matches!(decoder.decode(input), Ok(Some(Event::End(None)))));
}

fn decode_pipelined(iterations: u64) {
    let text = WRK.repeat(16);
    let mut decoder = Decoder::new(Limits { max_requests_per_connection: u64::MAX, ..Limits::default() });
    for _ in 0..iterations / 16 {
        let mut input = black_box(text.as_bytes());
        while !input.is_empty() {
            decode_one(&mut decoder, &mut input);
        }
    }
}

fn decode_split(iterations: u64) {
    let mut decoder = Decoder::new(Limits { max_requests_per_connection: u64::MAX, ..Limits::default() });
    for _ in 0..iterations {
        let (mut first, mut second) = black_box(CURL.as_bytes()).split_at(45);
        black_box(decoder.decode(&mut first).is_ok());
        decode_one(&mut decoder, &mut second);
    }
}

fn head_of(text: &str) -> Head {
    match Decoder::new(Limits::default()).decode(&mut text.as_bytes()) {
        Ok(Some(Event::Head(head))) => head,
        _ => Head::default(),
    }
}

fn look_up(iterations: u64) {
    let head = head_of(FOUR);
    let names = [
        "If-None-Match",
        "If-Modified-Since",
        "If-Match",
        "If-Unmodified-Since",
        "Range",
        "If-Range",
        "Accept-Encoding",
        "Origin",
    ];
    for _ in 0..iterations {
        for name in names {
            black_box(black_box(&head).field(name));
        }
    }
}

fn encode_fields(iterations: u64) {
    let (context, date) = (head_of(WRK).context(), HttpDate::from_unix(1_700_000_000));
    each_encoded(iterations, |out| encode_with_fields(out, context, &date).is_some());
}

fn encode_with_fields(out: &mut Vec<u8>, context: RequestContext, date: &HttpDate) -> Option<()> {
    let mut head = ResponseHead::begin(out, black_box(context), 200).ok()?;
    head.date(date);
    head.field(FieldName::CONTENT_TYPE, black_box(b"text/html; charset=utf-8")).ok()?;
    head.field(FieldName::LAST_MODIFIED, black_box(b"Sun, 06 Nov 1994 08:49:37 GMT")).ok()?;
    head.field(FieldName::ETAG, black_box(b"\"65a1b2c3-1f40\"")).ok()?;
    black_box(head.finish(BodyLength::Known(black_box(6123))).keeps_alive());
    Some(())
}

fn encode_block(iterations: u64) {
    let (context, date) = (head_of(WRK).context(), HttpDate::from_unix(1_700_000_000));
    let mut block = FieldBlock::default();
    let pushed = block
        .push(FieldName::CONTENT_TYPE, b"text/html; charset=utf-8")
        .and_then(|block| block.push(FieldName::LAST_MODIFIED, b"Sun, 06 Nov 1994 08:49:37 GMT"))
        .and_then(|block| block.push(FieldName::ETAG, b"\"65a1b2c3-1f40\""));
    black_box(pushed.is_ok());
    each_encoded(iterations, |out| {
        let Ok(mut head) = ResponseHead::begin(out, black_box(context), 200) else { return false };
        head.date(&date).block(black_box(&block));
        head.finish(BodyLength::Known(black_box(6123))).keeps_alive()
    });
}

fn encode_not_modified(iterations: u64) {
    let (context, date) = (head_of(WRK).context(), HttpDate::from_unix(1_700_000_000));
    each_encoded(iterations, |out| {
        let Ok(mut head) = ResponseHead::begin(out, black_box(context), black_box(304)) else {
            return false;
        };
        head.date(&date);
        let etag = head.field(FieldName::ETAG, black_box(b"\"65a1b2c3-1f40\"")).is_ok();
        etag & head.finish(BodyLength::Unknown).keeps_alive()
    });
}

fn each_encoded(iterations: u64, mut encode: impl FnMut(&mut Vec<u8>) -> bool) {
    let mut out = Vec::with_capacity(4096);
    for _ in 0..iterations {
        out.clear();
        black_box(encode(&mut out));
        black_box(&out);
    }
}

fn date(iterations: u64) {
    for seconds in 0..iterations {
        black_box(HttpDate::from_unix(1_700_000_000 + seconds));
    }
}
