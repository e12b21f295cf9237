//! A parser of the text format of Prometheus that takes nothing but what the format's description and its lint demand:
//! help and type before the samples of a family, families in one piece, no series twice, names and escapes as they must
//! be, counters that end in `_total`, histograms that add up.

use std::collections::HashSet;

type Result<T> = std::result::Result<T, String>;

/// Samples under one help and type.
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

/// Reads a whole scrape.
pub(super) fn parse(text: &str) -> Result<Vec<Family>> {
    let text = text.strip_suffix('\n').ok_or("the last line does not end")?;
    let mut families: Vec<Family> = Vec::new();
    let mut lines = text.split('\n');
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or("a help without text")?;
            let kind = lines.next().and_then(|line| line.strip_prefix(&format!("# TYPE {name} ")));
            let kind = kind.ok_or_else(|| format!("no type after the help of {name}"))?;
            if families.iter().any(|family| family.name == name) || !is_name(name) {
                return Err(format!("{name} comes twice, or is no name"));
            }
            families.push(Family {
                name: name.into(),
                help: unescape(help, "\\n")?,
                kind: kind.into(),
                samples: Vec::new(),
            });
        } else {
            let family = families.last_mut().ok_or("a sample before the first help")?;
            family.samples.push(sample(line)?);
        }
    }
    families.iter().try_for_each(check)?;
    Ok(families)
}

fn sample(line: &str) -> Result<Sample> {
    let name_end = line.find(['{', ' ']).ok_or_else(|| format!("no sample: {line:?}"))?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value = rest.strip_prefix(' ').filter(|value| !value.is_empty() && !value.contains(' '));
    let value = value.and_then(|value| value.parse().ok()).ok_or_else(|| format!("no value: {line:?}"))?;
    if !is_name(name) {
        return Err(format!("no name: {line:?}"));
    }
    Ok(Sample { name: name.into(), labels, value })
}

/// Labels up to their closing brace, and what follows it.
fn labels(mut rest: &str) -> Result<(Vec<(String, String)>, &str)> {
    let mut labels: Vec<(String, String)> = Vec::new();
    loop {
        let (name, after) = rest.split_once("=\"").ok_or("a label without a value")?;
        let mut escaped = false;
        let end = after.find(|character| {
            let ends = character == '"' && !escaped;
            escaped = character == '\\' && !escaped;
            ends
        });
        let end = end.ok_or("a value that does not end")?;
        if !is_name(name) || labels.iter().any(|(other, _)| other == name) {
            return Err(format!("label {name:?} comes twice, or is no name"));
        }
        labels.push((name.into(), unescape(&after[..end], "\\n\"")?));
        rest = &after[end + 1..];
        if let Some(rest) = rest.strip_prefix('}') {
            return Ok((labels, rest));
        }
        rest = rest.strip_prefix(',').ok_or("labels without a comma between")?;
    }
}

/// Takes the escapes away, of which only these are allowed.
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
            None => return Err(format!("a wrong escape: {text:?}")),
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
        return Err(format!("{name} has a series twice"));
    }
    if family.kind == "histogram" {
        return check_histogram(family);
    }
    if !["counter", "gauge"].contains(&family.kind.as_str()) {
        return Err(format!("{name} is of type {:?}", family.kind));
    }
    if (family.kind == "counter") != name.ends_with("_total") {
        return Err(format!("{name} is a {}", family.kind));
    }
    let fits = |sample: &Sample| sample.name == *name && sample.value.is_finite() && sample.value >= 0.0;
    if family.samples.iter().all(fits) {
        Ok(())
    } else {
        Err(format!("{name} has a sample that does not fit"))
    }
}

/// Buckets with rising bounds and counts up to infinity, then the sum, then the count.
fn check_histogram(family: &Family) -> Result<()> {
    let wrong = |what: &str| Err(format!("{}: {what}", family.name));
    let names = ["_sum", "_count"].map(|end| format!("{}{end}", family.name));
    let [buckets @ .., sum, count] = &family.samples[..] else { return wrong("it is not whole") };
    if [&sum.name, &count.name] != [&names[0], &names[1]]
        || !sum.labels.is_empty()
        || !count.labels.is_empty()
    {
        return wrong("it does not end in sum and count");
    }
    let (mut bound, mut below) = (f64::NEG_INFINITY, 0.0);
    for bucket in buckets {
        let [(label, text)] = &bucket.labels[..] else { return wrong("a bucket without its bound") };
        let next: f64 = if text == "+Inf" { f64::INFINITY } else { text.parse().map_err(|_| "no bound")? };
        if bucket.name != format!("{}_bucket", family.name) || label != "le" {
            return wrong("a sample that is no bucket");
        }
        if next <= bound || bucket.value < below {
            return wrong("bounds or counts that do not rise");
        }
        (bound, below) = (next, bucket.value);
    }
    if bound != f64::INFINITY || below != count.value {
        return wrong("the last bucket does not hold all");
    }
    Ok(())
}
