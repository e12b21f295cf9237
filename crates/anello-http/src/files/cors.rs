//! Cross-origin access: `Access-Control-Allow-Origin` as defined by the Fetch standard.
//!
//! Responses do not depend on cookies or other credentials, so `*` is safe on a public server. Credentialed access
//! is never allowed.

use super::invalid_option::InvalidOption;

/// The origins whose scripts may read responses.
///
/// ```
/// use anello_http::files::cors::CorsOrigins;
///
/// let all = CorsOrigins::new(&["*".to_owned()])?;
/// assert_eq!(all.headers(Some(b"https://example.org")).allow_origin, Some("*"));
/// let none = CorsOrigins::default();
/// assert_eq!(none.headers(Some(b"https://example.org")).allow_origin, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorsOrigins {
    allows_all: bool,
    origins: Vec<String>,
}

/// CORS headers of a response.
///
/// ```
/// use anello_http::files::cors::{CorsHeaders, CorsOrigins};
///
/// let origins = CorsOrigins::new(&["https://example.org".to_owned()])?;
/// let CorsHeaders { allow_origin, varies } = origins.headers(Some(b"https://example.org"));
/// assert_eq!((allow_origin, varies), (Some("https://example.org"), true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CorsHeaders<'a> {
    /// Value of `Access-Control-Allow-Origin`; `None` if the origin is not allowed.
    pub allow_origin: Option<&'a str>,
    /// Whether the value depends on the request origin. If so, the response needs `Vary: Origin`.
    pub varies: bool,
}

impl CorsOrigins {
    /// Parses origins in the form that browsers send: `https://example.org`, with the port if it is not the scheme's
    /// default. A default port is accepted and removed. `*` allows all origins.
    ///
    /// ```
    /// use anello_http::files::cors::CorsOrigins;
    ///
    /// assert!(CorsOrigins::new(&["https://example.org:8443".to_owned()]).is_ok());
    /// // An origin has no path.
    /// assert_eq!(CorsOrigins::new(&["https://example.org/".to_owned()]).unwrap_err().option(), "cors-origin");
    /// ```
    ///
    /// # Errors
    /// Returns an error if an origin is malformed.
    pub fn new(origins: &[String]) -> Result<Self, InvalidOption> {
        let listed = origins.iter().filter(|origin| *origin != "*");
        let normalized = listed.map(|origin| normalize_origin(origin)).collect::<Result<_, _>>()?;
        Ok(Self { allows_all: origins.iter().any(|origin| origin == "*"), origins: normalized })
    }

    /// Returns the headers for a request with this `Origin`; `None` stands for a request without `Origin`.
    ///
    /// ```
    /// use anello_http::files::cors::CorsOrigins;
    /// let origins = CorsOrigins::new(&["https://example.org".to_owned()])?;
    /// assert_eq!(origins.headers(Some(b"https://example.org")).allow_origin, Some("https://example.org"));
    /// assert_eq!(origins.headers(Some(b"https://example.net")).allow_origin, None);
    /// # Ok::<(), anello_http::files::options::InvalidOption>(())
    /// ```
    #[inline]
    pub fn headers(&self, origin: Option<&[u8]>) -> CorsHeaders<'_> {
        if self.allows_all {
            return CorsHeaders { allow_origin: Some("*"), varies: false };
        }
        let listed = origin.and_then(|origin| self.origins.iter().find(|listed| listed.as_bytes() == origin));
        CorsHeaders { allow_origin: listed.map(String::as_str), varies: !self.origins.is_empty() }
    }
}

fn normalize_origin(origin: &str) -> Result<String, InvalidOption> {
    let lower = origin.to_ascii_lowercase();
    let (scheme, host_and_port) = lower.split_once("://").unwrap_or_default();
    // Browsers never send the default port of a scheme.
    let default_port = match scheme {
        "https" => ":443",
        "http" => ":80",
        _ => "",
    };
    let host = host_and_port.strip_suffix(default_port).unwrap_or(host_and_port);
    let is_scheme = scheme.starts_with(|first: char| first.is_ascii_lowercase())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    if is_scheme && !host.is_empty() && host.bytes().all(is_host) {
        return Ok(format!("{scheme}://{host}"));
    }
    let reason = "an origin is a scheme and a host without a path or trailing slash, for example \"https://example.org\" \
               (use xn--... for internationalized names, \"*\" for all origins)";
    Err(InvalidOption::new("cors-origin", origin, reason))
}
