//! Error messages from the TOML parser, in TOML terms.

/// Replaces names of Rust types in a serde message with TOML terms.
pub(crate) fn describe_toml_error(message: &str) -> String {
    let mismatch = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    let Some((actual, expected)) = mismatch.and_then(|rest| rest.rsplit_once(", expected ")) else {
        return message.to_owned();
    };
    let expected = match expected {
        "usize" | "u64" | "u32" | "u16" => "a whole number of at least 0",
        "f64" => "a number",
        "a boolean" => "a boolean, true or false",
        "a string" => "text in quotes",
        other => other,
    };
    format!("expected {expected}, not {actual}")
}
