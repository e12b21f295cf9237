//! Strict parser for the Prometheus text format.
//!
//! Accepts only text that satisfies the format specification and the rules of its linter: help and type lines precede
//! the samples of a family, the samples of a family are contiguous, series are unique, names and escapes are valid,
//! names of counters end in `_total`, and histograms are consistent.

use std::collections::HashSet;

type Result<T> = std::result::Result<T, String>;

/// The samples that share a help line and a type line.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: String,
    pub(super) help: String,
    pub(super) kind: String,
    pub(super) samples: Vec<Sample>,
}

#[derive(Debug)]
pub(super) struct Sample {
    pub(super) name: String,
    pub(super) labels: Vec<(String, String)>,
    pub(super) value: f64,
}

/// Parses the text of one scrape.
pub(super) fn parse(text: &str) -> Result<Vec<Family>> {
    let text = text.strip_suffix('\n').ok_or("no line feed at the end of the text")?;
    let mut families: Vec<Family> = Vec::new();
    let mut lines = text.split('\n');
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or("help line without text")?;
            let kind = lines.next().and_then(|line| line.strip_prefix(&format!("# TYPE {name} ")));
            let kind = kind.ok_or_else(|| format!("no type line after the help line of {name}"))?;
            if families.iter().any(|family| family.name == name) || !is_name(name) {
                return Err(format!("duplicate or invalid family name {name}"));
            }
            families.push(Family {
                name: name.into(),
                help: unescape(help, "\\n")?,
                kind: kind.into(),
                samples: Vec::new(),
            });
        } else {
            let family = families.last_mut().ok_or("sample before the first help line")?;
            family.samples.push(sample(line)?);
        }
    }
    families.iter().try_for_each(check)?;
    Ok(families)
}

fn sample(line: &str) -> Result<Sample> {
    let name_end = line.find(['{', ' ']).ok_or_else(|| format!("not a sample: {line:?}"))?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value = rest.strip_prefix(' ').filter(|value| !value.is_empty() && !value.contains(' '));
    let value = value.and_then(|value| value.parse().ok()).ok_or_else(|| format!("no value: {line:?}"))?;
    if !is_name(name) {
        return Err(format!("invalid name: {line:?}"));
    }
    Ok(Sample { name: name.into(), labels, value })
}

/// Parses labels up to the closing brace. Returns them and the remaining text.
fn labels(mut rest: &str) -> Result<(Vec<(String, String)>, &str)> {
    let mut labels: Vec<(String, String)> = Vec::new();
    loop {
        let (name, after) = rest.split_once("=\"").ok_or("label without a value")?;
        let mut escaped = false;
        let end = after.find(|character| {
            let is_end = character == '"' && !escaped;
            escaped = character == '\\' && !escaped;
            is_end
        });
        let end = end.ok_or("unterminated label value")?;
        if !is_name(name) || labels.iter().any(|(other, _)| other == name) {
            return Err(format!("duplicate or invalid label {name:?}"));
        }
        labels.push((name.into(), unescape(&after[..end], "\\n\"")?));
        rest = &after[end + 1..];
        if let Some(rest) = rest.strip_prefix('}') {
            return Ok((labels, rest));
        }
        rest = rest.strip_prefix(',').ok_or("missing comma between labels")?;
    }
}

/// Replaces the escape sequences. Returns an error for an escape that is not in `allowed`.
fn unescape(text: &str, allowed: &str) -> Result<String> {
    let mut plain = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if character != '\\' {
            plain.push(character);
            continue;
        }
        match characters.next().filter(|&escape| allowed.contains(escape)) {
            Some('n') => plain.push('\n'),
            Some(escape) => plain.push(escape),
            None => return Err(format!("invalid escape: {text:?}")),
        }
    }
    Ok(plain)
}

fn is_name(name: &str) -> bool {
    let mut characters = name.chars();
    characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && characters.all(|character| character.is_ascii_alphanumeric() || character == '_')
}

fn check(family: &Family) -> Result<()> {
    let name = &family.name;
    if family.samples.is_empty() {
        return Err(format!("{name} has no samples"));
    }
    let series: HashSet<_> = family.samples.iter().map(|sample| (&sample.name, &sample.labels)).collect();
    if series.len() != family.samples.len() {
        return Err(format!("{name} has a duplicate series"));
    }
    if family.kind == "histogram" {
        return check_histogram(family);
    }
    if !["counter", "gauge"].contains(&family.kind.as_str()) {
        return Err(format!("{name} has the unknown type {:?}", family.kind));
    }
    if (family.kind == "counter") != name.ends_with("_total") {
        return Err(format!("{name} is a {}", family.kind));
    }
    let is_valid = |sample: &Sample| sample.name == *name && sample.value.is_finite() && sample.value >= 0.0;
    if family.samples.iter().all(is_valid) { Ok(()) } else { Err(format!("{name} has an invalid sample")) }
}

/// Checks a histogram: buckets with increasing bounds and cumulative counts up to `+Inf`, then the sum, then the count.
fn check_histogram(family: &Family) -> Result<()> {
    let invalid = |reason: &str| Err(format!("{}: {reason}", family.name));
    let names = ["_sum", "_count"].map(|suffix| format!("{}{suffix}", family.name));
    let [buckets @ .., sum, count] = &family.samples[..] else { return invalid("incomplete histogram") };
    if [&sum.name, &count.name] != [&names[0], &names[1]]
        || !sum.labels.is_empty()
        || !count.labels.is_empty()
    {
        return invalid("sum and count are not the last samples");
    }
    let (mut bound, mut cumulative) = (f64::NEG_INFINITY, 0.0);
    for bucket in buckets {
        let [(label, text)] = &bucket.labels[..] else { return invalid("bucket without a bound") };
        let next: f64 =
            if text == "+Inf" { f64::INFINITY } else { text.parse().map_err(|_| "invalid bound")? };
        if bucket.name != format!("{}_bucket", family.name) || label != "le" {
            return invalid("sample is not a bucket");
        }
        if next <= bound || bucket.value < cumulative {
            return invalid("bounds or counts do not increase");
        }
        (bound, cumulative) = (next, bucket.value);
    }
    if bound != f64::INFINITY || cumulative != count.value {
        return invalid("last bucket is not +Inf or does not equal the count");
    }
    Ok(())
}
