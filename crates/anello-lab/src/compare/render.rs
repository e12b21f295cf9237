//! Plain-text output of a comparison: differences between the runs, verdict, and changes.

use crate::compare::{Change, ChangeVerdict, Comparison, Difference, RunName};
use crate::report::format::{cut, interval, percent, times};
use crate::report::table::{WIDTH, push_line, wrap};
use crate::result::measure::Measure;
use crate::result::time::readable_time;

/// Maximum width of a value in the table of differences, in columns.
const VALUE_WIDTH: usize = 34;

/// Renders the comparison as plain text, at most 108 columns wide.
#[must_use]
pub fn render_comparison(comparison: &Comparison) -> String {
    let mut text = String::new();
    let name = |run: &RunName| {
        format!("{}, {}, anello {}", readable_time(run.started_unix_s), run.scenario, run.version)
    };
    push_line(&mut text, &format!("A: {}", name(&comparison.before)));
    push_line(&mut text, &format!("B: {}\n", name(&comparison.after)));
    differences(&mut text, comparison);
    push_line(&mut text, "");
    verdict(comparison).iter().for_each(|sentence| wrap(&mut text, "", sentence));
    let shown: Vec<&Change> =
        comparison.changes.iter().filter(|change| is_better_or_worse(change.verdict)).collect();
    if !shown.is_empty() {
        let head = format!("\n{:<20} {:<27} {:<21} {:>5} {:>5}  B / A", "contender", "cell", "", "A", "B");
        push_line(&mut text, &head);
        push_line(&mut text, &"─".repeat(WIDTH));
    }
    shown.into_iter().for_each(|change| push_line(&mut text, &line(comparison, change)));
    for (title, verdict) in
        [("failed in B", ChangeVerdict::Broken), ("works again in B", ChangeVerdict::Fixed)]
    {
        for change in comparison.changes.iter().filter(|change| change.verdict == verdict) {
            let why = change.why.as_deref().unwrap_or("");
            wrap(&mut text, "- ", &format!("{} at {}: {title}: {why}", change.contender, change.cell));
        }
    }
    text
}

/// Writes the differences between the machines, plans and contenders of the two runs.
fn differences(text: &mut String, comparison: &Comparison) {
    if comparison.differences.is_empty() {
        push_line(text, "No differences between the runs: same machine, same plan, same programs.");
        return;
    }
    push_line(text, &format!("{:<37} {:<34} B", "differs", "A"));
    for Difference { what, before, after } in &comparison.differences {
        let (before, after) = distinguishing_parts(before, after);
        push_line(text, &format!("{:<37} {before:<34} {after:<34}", cut(what, 37)));
    }
}

/// Cuts two values to the available width. If they would look the same after that, their common leading words are
/// removed.
fn distinguishing_parts(before: &str, after: &str) -> (String, String) {
    let shown = |value: &str| if value.is_empty() { "–".to_owned() } else { cut(value, VALUE_WIDTH) };
    if shown(before) != shown(after) {
        return (shown(before), shown(after));
    }
    let words = |value: &str| value.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let (before, after) = (words(before), words(after));
    let alike = before.iter().zip(&after).take_while(|(one, other)| one == other).count();
    let rest = |words: &[String]| cut(&format!("… {}", words[alike..].join(" ")), VALUE_WIDTH);
    (rest(&before), rest(&after))
}

fn is_better_or_worse(verdict: ChangeVerdict) -> bool {
    matches!(verdict, ChangeVerdict::Better | ChangeVerdict::Worse)
}

/// Returns the verdict as sentences, the most important first.
fn verdict(comparison: &Comparison) -> Vec<String> {
    let count = |verdict| comparison.changes.iter().filter(|change| change.verdict == verdict).count();
    let mut sentences = Vec::new();
    if !comparison.obstacles.is_empty() {
        sentences.push(format!(
            "The runs cannot be compared: {}. Repeat one of them under the conditions of the other.",
            comparison.obstacles.join(", ")
        ));
        return sentences;
    }
    let threshold = percent(comparison.threshold);
    let own = || comparison.changes.iter().filter(|change| is_counted(comparison, change));
    let is_judged = |change: &&Change| change.change.is_some() || change.verdict == ChangeVerdict::Broken;
    let judged = own().filter(is_judged).count();
    let noisy = own().filter(|change| change.verdict == ChangeVerdict::TooNoisy).count();
    let counts_all = comparison.changes.iter().all(|change| is_counted(comparison, change));
    let reference = reference_among(&comparison.counted, comparison);
    let names = comparison.counted.iter().map(String::as_str);
    let mut names: Vec<&str> = names.filter(|&name| Some(name) != reference).collect();
    if names.is_empty() {
        names.extend(reference);
    }
    let of_names = if counts_all { String::new() } else { format!(" of {}", names.join(", ")) };
    sentences.push(match comparison.regressions {
        0 if judged == 0 => format!("Nothing{of_names} could be compared."),
        0 if noisy == judged => {
            format!("Too noisy: these two runs do not show whether anything{of_names} became worse.")
        }
        0 => format!("No significant regression{of_names} above {threshold}."),
        1 => format!("One significant regression{of_names} above {threshold}."),
        more => format!("{more} significant regressions{of_names} above {threshold}."),
    });
    sentences.extend(reference.map(|name| {
        format!("{name} is the reference: changes of its own cannot be detected unless it fails.")
    }));
    sentences.extend(uncounted_regressions(comparison));
    sentences.push(format!(
        "Significant: {} better, {} worse. No detectable difference: {}. Too noisy: {}. Not comparable: {}.",
        count(ChangeVerdict::Better),
        count(ChangeVerdict::Worse) + count(ChangeVerdict::Broken),
        count(ChangeVerdict::NoDifference),
        count(ChangeVerdict::TooNoisy),
        count(ChangeVerdict::NotComparable),
    ));
    for measure in Measure::IN_PAIRS {
        let of_measure = || comparison.changes.iter().filter(|change| change.measure == Some(measure));
        let Some(workload) = of_measure().next().map(|change| change.cell.workload) else { continue };
        let noise: Vec<f64> = of_measure().filter_map(|change| change.noise).collect();
        let min = noise.iter().copied().min_by(f64::total_cmp);
        let max = noise.iter().copied().max_by(f64::total_cmp);
        if let (Some(min), Some(max)) = (min, max) {
            sentences.push(format!(
                "{}: the reference against itself changed by {} to {}; smaller changes are not significant.",
                measure.name(workload),
                percent(min),
                percent(max)
            ));
        }
    }
    let reasons = comparison.changes.iter().filter(|change| change.verdict == ChangeVerdict::NotComparable);
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for why in reasons.filter_map(|change| change.why.as_deref()) {
        match counts.iter_mut().find(|(earlier, _)| *earlier == why) {
            Some((_, count)) => *count += 1,
            None => counts.push((why, 1)),
        }
    }
    sentences.extend(counts.into_iter().map(|(why, count)| format!("Not comparable ({count}): {why}.")));
    sentences
}

/// Returns the name of the reference if it is among `names`.
fn reference_among<'a>(names: &'a [String], comparison: &Comparison) -> Option<&'a str> {
    let mut references =
        comparison.changes.iter().filter(|change| change.verdict == ChangeVerdict::Reference);
    let reference = &references.next()?.contender;
    names.iter().find(|name| *name == reference).map(String::as_str)
}

fn is_counted(comparison: &Comparison, change: &Change) -> bool {
    comparison.counted.contains(&change.contender)
}

/// Returns a sentence on the regressions of contenders that do not count.
fn uncounted_regressions(comparison: &Comparison) -> Option<String> {
    let mut names: Vec<&str> = Vec::new();
    for change in
        comparison.changes.iter().filter(|change| change.regression && !is_counted(comparison, change))
    {
        if !names.contains(&change.contender.as_str()) {
            names.push(&change.contender);
        }
    }
    (!names.is_empty()).then(|| {
        format!(
            "Not counted: {} of {}, because they or the machine changed (--fail-on all counts them).",
            if comparison.regressions_of_others == 1 {
                "one regression".to_owned()
            } else {
                format!("{} regressions", comparison.regressions_of_others)
            },
            names.join(", ")
        )
    })
}

fn line(comparison: &Comparison, change: &Change) -> String {
    let value = |value: Option<f64>| value.map_or(String::new(), times);
    let shown = change
        .change
        .map_or(String::new(), |ratio| format!("{} ({})", times(ratio.estimate), interval(&ratio)));
    let verdict = match (change.verdict, change.regression && is_counted(comparison, change)) {
        (ChangeVerdict::Better, _) => "better",
        (_, true) => "WORSE",
        _ => "worse",
    };
    let what = match change.measure {
        // The column is too narrow for "server".
        Some(measure) => measure.name(change.cell.workload).trim_start_matches("server "),
        None => "",
    };
    let name = cut(&change.contender, 20);
    let cell = cut(&change.cell.to_string(), 27);
    format!(
        "{name:<20} {cell:<27} {what:<21} {:>5} {:>5}  {shown:<18} {verdict}",
        value(change.before),
        value(change.after)
    )
}
