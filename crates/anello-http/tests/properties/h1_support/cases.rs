//! Test inputs for the decoder and the server: invalid requests for each row of the fault list, and the bytes sent on
//! valid and invalid connections.

use anello_http::h1::Limits;

/// The bytes to send, and the expected status code of the rejection.
pub type RejectedCase = (Vec<u8>, u16);

/// Returns a POST request with these field lines and this body.
pub fn post(fields: &str, body: &str) -> String {
    format!("POST /form HTTP/1.1\r\nHost: h\r\n{fields}\r\n{body}")
}

/// Returns a POST request with `Transfer-Encoding: chunked` and this body, which must contain its chunk framing.
pub fn chunked(body: &str) -> String {
    post("Transfer-Encoding: chunked\r\n", body)
}

fn rejected_case(text: impl Into<String>, status: u16) -> RejectedCase {
    (text.into().into_bytes(), status)
}

/// Fault 25: request lines, heads, field counts and bodies that exceed the limits.
pub fn too_long_or_too_many() -> Vec<RejectedCase> {
    let limits = Limits::default();
    let long = "a".repeat(1 << 20);
    let many = |count| format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "A: b\r\n".repeat(count));
    vec![
        rejected_case(format!("GET /{long} HTTP/1.1\r\n"), 414),
        rejected_case(format!("GET /{}", "a".repeat(limits.max_request_line_bytes)), 414),
        rejected_case("A".repeat(1 << 20), 501),
        rejected_case(format!("{} / HTTP/1.1\r\nHost: h\r\n\r\n", "A".repeat(33)), 501),
        rejected_case(format!("GET / HTTP/1.1\r\nHost: h\r\nA: {long}\r\n\r\n"), 431),
        rejected_case(format!("GET / HTTP/1.1\r\nHost: h\r\n{long}: a\r\n\r\n"), 431),
        rejected_case(many(10_000), 431),
        rejected_case(many(100), 431),
        rejected_case(post("Content-Length: 16777217\r\n", ""), 413),
        rejected_case(chunked("1000001\r\n"), 413),
    ]
}

/// Fault 26: bodies with conflicting or disguised framing.
pub fn conflicting_framing() -> Vec<RejectedCase> {
    let both = [
        "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        "transfer-encoding: gzip, chunked\r\ncontent-length: 3\r\n",
        "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: x\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 3\r\nTransfer-Encoding: identity\r\n",
        "Content-Length: 3\r\nTransfer-Encoding:\r\n",
        "Content-Length: 99999999999\r\nTransfer-Encoding: chunked\r\n",
    ];
    // `chunked` must be the last coding, must occur only once, and must be spelled exactly like this.
    let codings = [
        "gzip",
        "identity",
        "chunked, gzip",
        "chunked, chunked",
        "chunked, identity",
        "xchunked",
        "chunkedx",
        "\"chunked\"",
        "chunked;q=1",
        "chunked; ",
        ", chunked",
        "chunked,",
        ",",
        "",
        " ",
        "chunk ed",
        "chunked chunked",
        "chunked\tgzip",
        "gzip,, chunked",
        "=chunked",
        "chunked\u{a0}",
    ];
    // Disguised field names.
    let disguised = [
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding\t: chunked\r\n",
        " Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: \u{b}chunked\r\n",
        "Transfer-Encoding\r\n : chunked\r\n",
        "Transfer-Encoding: x\r\n chunked\r\n",
        "X: y\nTransfer-Encoding: chunked\r\n",
        "X: y\rTransfer-Encoding: chunked\r\n",
        "X: y\0Transfer-Encoding: chunked\r\n",
        "Transfer\u{2d}Encoding\u{7f}: chunked\r\n",
    ];
    let duplicates = [
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    ];
    // Unknown codings with valid framing.
    let unknown =
        ["Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: br\r\nTransfer-Encoding: chunked\r\n"];
    let fields = [&both[..], &disguised, &duplicates].concat();
    let case = |fields: &str, status| rejected_case(post(fields, "0\r\n\r\n"), status);
    let mut all: Vec<_> = fields.iter().map(|fields| case(fields, 400)).collect();
    all.extend(codings.map(|coding| case(&format!("Transfer-Encoding: {coding}\r\n"), 400)));
    all.extend(unknown.map(|fields| case(fields, 501)));
    let http_10 = ["Transfer-Encoding: chunked", "Connection: keep-alive\r\nTransfer-Encoding: chunked"];
    all.extend(
        http_10.map(|fields| rejected_case(format!("POST / HTTP/1.0\r\n{fields}\r\n\r\n0\r\n\r\n"), 400)),
    );
    all
}

/// Fault 27: `Content-Length` fields whose value is not a number, or that occur more than once.
pub fn bad_lengths() -> Vec<RejectedCase> {
    let values = [
        "",
        " ",
        "+3",
        "-3",
        "-0",
        "3 ,3",
        "3, 3",
        "3,",
        "3 3",
        "0x3",
        "3.0",
        "3e0",
        "three",
        "\"3\"",
        "3;",
        "३",
        "18446744073709551616",
        "99999999999999999999999999",
    ];
    let duplicates = [
        "Content-Length: 3\r\nContent-Length: 3\r\n",
        "Content-Length: 3\r\ncontent-length: 4\r\n",
        "Content-Length: 0\r\nX: y\r\nCONTENT-LENGTH: 3\r\n",
        "Content-Length: \r\nContent-Length: 3\r\n",
    ];
    let values = values.map(|value| rejected_case(post(&format!("Content-Length: {value}\r\n"), "abc"), 400));
    let duplicates = duplicates.map(|fields| rejected_case(post(fields, "abc"), 400));
    values.into_iter().chain(duplicates).collect()
}

/// Fault 28: invalid chunk framing, and extensions and trailers that exceed the limits. The heads are valid.
pub fn bad_chunks() -> Vec<RejectedCase> {
    let bodies = [
        "\r\n",
        "-1\r\n",
        "0x0\r\n",
        "g\r\n",
        " 0\r\n\r\n",
        ";\r\n",
        "0 \r\n\r\n",
        "10000000000000000\r\n",
        "ffffffffffffffffff\r\n",
        "00000000000000003\r\nabc\r\n",
        "3\nabc\r\n",
        "3\r\nabc\n",
        "3\rabc\r\n",
        "3\r\nabcd\r\n",
        "3\r\nab\r\n0\r\n\r\n",
        "3\r\nabc0\r\n\r\n",
        "3;\nabc\r\n",
        "3;a=\"\n\"\r\nabc\r\n",
        "3;\0\r\nabc\r\n",
        "3;a\rb\r\nabc\r\n",
        "0\n\n",
        "0\r\n\n",
        "0\r\nA\r\n\r\n",
        "0\r\n : b\r\n\r\n",
        "0\r\nA: b\r\n c\r\n\r\n",
        "0\r\nA: b\n\r\n",
        "0\r\nA : b\r\n\r\n",
        "0\r\nA: \0\r\n\r\n",
    ];
    let mut all: Vec<_> = bodies.iter().map(|body| rejected_case(chunked(body), 400)).collect();
    let long = |byte: &str| byte.repeat(1 << 20);
    all.extend([
        rejected_case(chunked("ffffffffffffffff\r\n"), 413),
        rejected_case(chunked(&"1;a=b\r\nx\r\n".repeat(1366)), 400),
        rejected_case(chunked(&format!("1;{}\r\nx\r\n", long("a"))), 400),
        rejected_case(chunked(&format!("1{}", long(" "))), 400),
        rejected_case(chunked(&format!("0\r\nA: {}\r\n\r\n", long("a"))), 431),
        rejected_case(chunked(&format!("0\r\n{}\r\n", "A: b\r\n".repeat(33))), 431),
    ]);
    all
}

/// Fault 29: invalid field lines and invalid line endings.
pub fn bad_fields() -> Vec<RejectedCase> {
    let fields = [
        ": a",
        ":",
        " a: b",
        "\ta: b",
        "a : b",
        "a\t: b",
        "a",
        "a b",
        "a b: c",
        "a\r",
        "a: b\r\n c",
        "a: b\r\n\tc",
        "a:\r\n b",
        "a\0: b",
        "a: \0",
        "a: b\u{1}",
        "a: \u{7f}",
        "ä: b",
        "(a): b",
        "a@b: c",
        "\"a\": b",
        "a[]: b",
        "a{: b",
    ];
    let texts = [
        "GET / HTTP/1.1\nHost: h\n\n",
        "GET / HTTP/1.1\nHost: h\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\n\r\n",
        "GET / HTTP/1.1\r\nHost: h \n\r\n",
        "GET / HTTP/1.1\r\nHost: h\u{1}\nA: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\u{7f}\nA: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost:\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\n\n",
        "GET / HTTP/1.1\r\nHost: h\r\nA:  \n\r\n",
        "GET / HTTP/1.1\rHost: h\r\n\r\n",
        "GET / HTTP/1.1\r\r\nHost: h\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\n\r\r",
        "GET / HTTP/1.1\r\nHost: h\rA: b\r\n\r\n",
    ];
    let after_host = fields.map(|field| rejected_case(post(&format!("{field}\r\n"), ""), 400));
    let before_host =
        fields.map(|field| rejected_case(format!("GET / HTTP/1.1\r\n{field}\r\nHost: h\r\n\r\n"), 400));
    after_host.into_iter().chain(before_host).chain(texts.map(|text| rejected_case(text, 400))).collect()
}

/// The bytes sent on many kinds of valid and invalid connections.
pub const CONNECTIONS: &[&str] = &[
    "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET /a?b=c HTTP/1.1\r\nHost: example.com:8080\r\nAccept: */*\r\nUser-Agent: curl/8.5.0\r\n\r\n",
    "\r\n\r\nGET / HTTP/1.1\r\nHost:\th \t\r\nA:\r\nB: \r\n\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\n\r\n",
    "\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n\r\n\r\n\
     GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET / HTTP/1.0\r\n\r\nleft alone",
    "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\nHEAD /2 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nleft alone",
    "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhelloPUT /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3 ;x=\"y\"\r\nabc\r\n0a;z\r\n0123456789\r\n\
     0\r\nSum: 1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n\
     abOPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET http://h:80/p?q HTTP/1.1\r\nHost: other\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\
     CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n",
    "GET / HTTP/1.1\nHost: h\n\n",
    "GET / HTTP/1.1\r\nHost: h\r\n folded\r\n\r\n",
    "GET / HTTP/1.1\r\nHost : h\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: h\r\nA: \0\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\nA b\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n",
    "GET / HTTP/1.1\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999\r\n\r\nabc",
    "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: h\r\nExpect: more\r\n\r\n",
    "GET /\u{e4} HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET / HTTP/2.0\r\nHost: h\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}",
    "GET * HTTP/1.1\r\nHost: h\r\n\r\n",
    "\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n11111111111111111\r\n",
    "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA : b\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET",
];
