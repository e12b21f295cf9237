//! URLs of HTTP, as far as a load needs them: where to connect to, by which name, and what to ask for.

/// A URL of HTTP, plain or under TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Whether it begins with `https`.
    pub is_secure: bool,
    /// With brackets where it is an IPv6 address.
    host: String,
    port: Option<u16>,
    /// Path and query.
    pub path: String,
}

impl Url {
    /// Where to connect to.
    pub fn host_and_port(&self) -> String {
        let usual = if self.is_secure { 443 } else { 80 };
        format!("{}:{}", self.host, self.port.unwrap_or(usual))
    }

    /// As in the `Host` field.
    pub fn authority(&self) -> String {
        self.port.map_or_else(|| self.host.clone(), |port| format!("{}:{port}", self.host))
    }

    /// The name or address that a certificate must be for.
    pub fn server_name(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }
}

/// Reads a URL as `http://HOST:PORT/PATH`.
pub fn parse_url(text: &str) -> Result<Url, String> {
    let wrong = |why: &str| format!("{text:?} {why}: write http://HOST:PORT/PATH or https://HOST:PORT/PATH");
    let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("is no URL"))?;
    let is_secure = scheme.eq_ignore_ascii_case("https");
    if !is_secure && !scheme.eq_ignore_ascii_case("http") {
        return Err(wrong("is no URL of HTTP"));
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let path = path.split('#').next().unwrap_or_default();
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    // A colon within brackets is one of an IPv6 address.
    let colon = authority.rfind(':').filter(|&colon| authority.rfind(']').is_none_or(|end| colon > end));
    let (host, port) = match colon {
        None => (authority, None),
        Some(colon) => {
            let port = authority[colon + 1..].parse().ok().filter(|&port: &u16| port > 0);
            (&authority[..colon], Some(port.ok_or_else(|| wrong("has no right port"))?))
        }
    };
    // Without its brackets an IPv6 address would be taken for a name, and be no right `Host`.
    let is_bare = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
    if host.is_empty() || host.contains('@') || is_bare {
        return Err(wrong("has no host that can be used"));
    }
    Ok(Url { is_secure, host: host.to_owned(), port, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_have_a_host_and_perhaps_a_port_and_a_path() {
        for (text, host_and_port, authority, path) in [
            ("http://localhost", "localhost:80", "localhost", "/"),
            ("http://127.0.0.1:8080/a/b?c=d#e", "127.0.0.1:8080", "127.0.0.1:8080", "/a/b?c=d"),
            ("http://[::1]:81?x", "[::1]:81", "[::1]:81", "/?x"),
            ("http://[::1]/", "[::1]:80", "[::1]", "/"),
            ("https://localhost/a", "localhost:443", "localhost", "/a"),
            ("https://[::1]:8443", "[::1]:8443", "[::1]:8443", "/"),
            ("HTTPS://localhost/A", "localhost:443", "localhost", "/A"),
        ] {
            let url = parse_url(text).unwrap();
            assert_eq!(
                (url.host_and_port(), url.authority()),
                (host_and_port.to_owned(), authority.to_owned())
            );
            assert_eq!((url.path.as_str(), url.is_secure), (path, text.to_lowercase().starts_with("https")));
        }
        for wrong in [
            "",
            "localhost:80",
            "http://",
            "http://:80/",
            "http://a:0/",
            "http://a:x/",
            "http://u@h/",
            "http://::1:80/",
            "http://[::1",
        ] {
            assert!(parse_url(wrong).is_err(), "{wrong}");
            assert!(parse_url(&wrong.replace("http", "https")).is_err(), "{wrong}");
        }
        assert!(parse_url("ftp://localhost/").unwrap_err().contains("https://HOST:PORT/PATH"));
    }

    #[test]
    fn a_certificate_is_for_the_host_alone() {
        let name = |text: &str| parse_url(text).unwrap().server_name().to_owned();
        assert_eq!(name("https://example.org:8443/"), "example.org");
        assert_eq!(name("https://[::1]:8443/"), "::1");
        assert_eq!(name("https://127.0.0.1/"), "127.0.0.1");
    }
}
