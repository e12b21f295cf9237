//! URLs with the scheme http or https.

/// A URL with the scheme http or https, without a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Whether the scheme is `https`.
    pub is_secure: bool,
    /// Name or address; an IPv6 address includes its brackets.
    host: String,
    port: Option<u16>,
    /// Path and query.
    pub path: String,
}

impl Url {
    /// Returns `HOST:PORT` to connect to.
    pub fn host_and_port(&self) -> String {
        let default_port = if self.is_secure { 443 } else { 80 };
        format!("{}:{}", self.host, self.port.unwrap_or(default_port))
    }

    /// Returns the value of the `Host` field.
    pub fn authority(&self) -> String {
        self.port.map_or_else(|| self.host.clone(), |port| format!("{}:{port}", self.host))
    }

    /// Returns the name or address that the server's certificate must contain.
    pub fn server_name(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }
}

/// Parses a URL such as `http://HOST:PORT/PATH`.
pub fn parse_url(text: &str) -> Result<Url, String> {
    let invalid = |reason: &str| {
        format!("invalid URL {text:?}: {reason} (expected http://HOST:PORT/PATH or https://HOST:PORT/PATH)")
    };
    let (scheme, rest) = text.split_once("://").ok_or_else(|| invalid("no scheme"))?;
    let is_secure = scheme.eq_ignore_ascii_case("https");
    if !is_secure && !scheme.eq_ignore_ascii_case("http") {
        return Err(invalid("the scheme is not http or https"));
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let path = path.split('#').next().unwrap_or_default();
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    // A colon inside brackets belongs to an IPv6 address.
    let colon = authority.rfind(':').filter(|&colon| authority.rfind(']').is_none_or(|end| colon > end));
    let (host, port) = match colon {
        None => (authority, None),
        Some(colon) => {
            let port = authority[colon + 1..].parse().ok().filter(|&port: &u16| port > 0);
            (&authority[..colon], Some(port.ok_or_else(|| invalid("invalid port"))?))
        }
    };
    // An IPv6 address without brackets is ambiguous, and invalid in the `Host` field.
    let is_unbracketed_ipv6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
    if host.is_empty() || host.contains('@') || is_unbracketed_ipv6 {
        return Err(invalid("missing or unsupported host"));
    }
    Ok(Url { is_secure, host: host.to_owned(), port, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_host_with_optional_port_and_path() {
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
        for invalid in [
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
            assert!(parse_url(invalid).is_err(), "{invalid}");
            assert!(parse_url(&invalid.replace("http", "https")).is_err(), "{invalid}");
        }
        assert!(parse_url("ftp://localhost/").unwrap_err().contains("https://HOST:PORT/PATH"));
    }

    #[test]
    fn server_name_omits_port_and_brackets() {
        let name = |text: &str| parse_url(text).unwrap().server_name().to_owned();
        assert_eq!(name("https://example.org:8443/"), "example.org");
        assert_eq!(name("https://[::1]:8443/"), "::1");
        assert_eq!(name("https://127.0.0.1/"), "127.0.0.1");
    }
}
