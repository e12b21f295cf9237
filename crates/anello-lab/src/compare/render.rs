//! Plain-text output of a comparison: the conclusion, the differences between the runs, the changes and the facts.

use crate::compare::change::{Change, ChangeVerdict, Comparison, RunName};
use crate::report::format::{cut, interval, percent, times};
use crate::report::table::{Table, TableRow, Value, push_line, wrap};
use crate::result::measure::Measure;
use crate::result::time::readable_time;
use crate::result::unique::unique;

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
    push_line(&mut text, &format!("B: {}", name(&comparison.after)));
    push_line(&mut text, "");
    wrap(&mut text, "", &conclusion(comparison));
    for table in [differences(comparison), changes(comparison)].iter().filter(|table| !table.rows.is_empty())
    {
        text += &table.to_text(true);
    }
    if comparison.differences.is_empty() {
        push_line(&mut text, "No differences between the runs: same machine, same plan, same programs.");
    }
    text + &facts(comparison).to_list()
}

fn differences(comparison: &Comparison) -> Table {
    let rows = comparison.differences.iter().map(|difference| {
        let (before, after) = distinguishing_parts(&difference.before, &difference.after);
        TableRow::new(&difference.what, vec![Value::new(before), Value::new(after)])
    });
    Table::new("Differences between the runs", &["", "A", "B"], rows.collect())
}

/// Truncates two values to the available width. If the results look the same, removes the leading words that the values
/// have in common.
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

fn conclusion(comparison: &Comparison) -> String {
    if !comparison.obstacles.is_empty() {
        return format!(
            "The runs cannot be compared: {} (repeat one of them under the conditions of the other).",
            comparison.obstacles.join(", ")
        );
    }
    let own: Vec<&Change> =
        comparison.changes.iter().filter(|change| is_counted(comparison, change)).collect();
    let is_judged = |change: &&&Change| change.change.is_some() || change.verdict == ChangeVerdict::Broken;
    let judged = own.iter().filter(is_judged).count();
    let noisy = own.iter().filter(|change| change.verdict == ChangeVerdict::TooNoisy).count();
    let of_names = if own.len() == comparison.changes.len() {
        String::new()
    } else {
        let names = comparison.counted.iter().map(String::as_str);
        let (references, others): (Vec<_>, Vec<_>) =
            names.partition(|name| Some(*name) == reference(comparison));
        format!(" of {}", if others.is_empty() { references } else { others }.join(", "))
    };
    let threshold = percent(comparison.threshold);
    match comparison.regressions {
        0 if judged == 0 => format!("No results{of_names} could be compared."),
        0 if noisy == judged => {
            format!("Too noisy: these two runs do not show whether any result{of_names} became worse.")
        }
        0 => format!("No significant regression{of_names} above {threshold}."),
        1 => format!("One significant regression{of_names} above {threshold}."),
        more => format!("{more} significant regressions{of_names} above {threshold}."),
    }
}

fn facts(comparison: &Comparison) -> Table {
    let with = |verdict| comparison.changes.iter().filter(move |change| change.verdict == verdict);
    let count = |verdict| with(verdict).count();
    let mut rows = Vec::new();
    let mut add = |name: &str, value: String| rows.push(TableRow::new(name, vec![Value::long(value)]));
    for (title, verdict) in
        [("failed in B", ChangeVerdict::Broken), ("works again in B", ChangeVerdict::Fixed)]
    {
        for change in with(verdict) {
            let why = change.why.as_deref().unwrap_or("");
            add(&format!("{} at {}", change.contender, change.cell), format!("{title}: {why}"));
        }
    }
    if let Some(reference) =
        reference(comparison).filter(|name| comparison.counted.iter().any(|it| it == name))
    {
        add(reference, "is the reference; only a failure can be detected, not a change".to_owned());
    }
    let is_uncounted = |change: &&Change| change.regression && !is_counted(comparison, change);
    let others = comparison.changes.iter().filter(is_uncounted);
    let others = unique(others.map(|change| change.contender.as_str()));
    if !others.is_empty() {
        let regressions = match comparison.regressions_of_others {
            1 => "one regression".to_owned(),
            more => format!("{more} regressions"),
        };
        let why = "because a contender or the machine changed (--fail-on all counts all regressions)";
        add("Not counted", format!("{regressions} of {}, {why}", others.join(", ")));
    }
    let worse = count(ChangeVerdict::Worse) + count(ChangeVerdict::Broken);
    add("Significant", format!("{} better, {worse} worse", count(ChangeVerdict::Better)));
    add("No detectable difference", count(ChangeVerdict::NoDifference).to_string());
    add("Too noisy", count(ChangeVerdict::TooNoisy).to_string());
    for measure in Measure::IN_PAIRS {
        let of_measure = || comparison.changes.iter().filter(|change| change.measure == Some(measure));
        let floors = || of_measure().filter_map(|change| change.noise);
        if let (Some(low), Some(high), Some(change)) =
            (floors().reduce(f64::min), floors().reduce(f64::max), of_measure().next())
        {
            let name = format!("Noise floor of {}", measure.name(change.cell.workload));
            let range = format!("{} to {}", percent(low), percent(high));
            add(
                &name,
                format!("{range} (change in a second instance of the reference, relative to the reference)"),
            );
        }
    }
    let mut reasons: Vec<(&str, usize)> = Vec::new();
    for why in with(ChangeVerdict::NotComparable).filter_map(|change| change.why.as_deref()) {
        match reasons.iter_mut().find(|(earlier, _)| *earlier == why) {
            Some((_, count)) => *count += 1,
            None => reasons.push((why, 1)),
        }
    }
    for (why, count) in reasons {
        add(&format!("Not comparable ({count})"), why.to_owned());
    }
    Table::new("Facts", &[], rows)
}

fn reference(comparison: &Comparison) -> Option<&str> {
    let mut changes = comparison.changes.iter();
    let reference = changes.find(|change| change.verdict == ChangeVerdict::Reference)?;
    Some(reference.contender.as_str())
}

fn is_counted(comparison: &Comparison, change: &Change) -> bool {
    comparison.counted.contains(&change.contender)
}

fn changes(comparison: &Comparison) -> Table {
    let is_shown = |change: &&Change| matches!(change.verdict, ChangeVerdict::Better | ChangeVerdict::Worse);
    let rows = comparison.changes.iter().filter(is_shown).map(|change| {
        let value = |value: Option<f64>| Value::new(value.map_or_else(String::new, times));
        let ratio = change
            .change
            .map_or_else(String::new, |ratio| format!("{} ({})", times(ratio.estimate), interval(&ratio)));
        let verdict = match (change.verdict, change.regression && is_counted(comparison, change)) {
            (ChangeVerdict::Better, _) => "better",
            (_, true) => "WORSE",
            _ => "worse",
        };
        // The column is too narrow for the word "server".
        let measure =
            change.measure.map(|measure| measure.name(change.cell.workload).trim_start_matches("server "));
        let values = vec![
            Value::new(cut(&change.cell.to_string(), 27)),
            Value::new(measure.unwrap_or("")),
            value(change.before),
            value(change.after),
            Value::new(ratio),
            Value::new(verdict),
        ];
        TableRow::new(&change.contender, values)
    });
    let head = ["contender", "cell", "measure", "A", "B", "B / A", ""];
    Table::new("Significant changes in the ratio to the reference", &head, rows.collect())
}
