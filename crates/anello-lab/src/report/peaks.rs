//! Peaks in the words that page and terminal share.

use crate::judge::peak::{Peak, Sweep};
use crate::report::format::count;
use crate::result::{ContenderRecord, LabResult};

/// Who has a line, with its index: all but those that are another a second time.
pub fn contenders(result: &LabResult) -> Vec<(usize, &ContenderRecord)> {
    result.contenders.iter().enumerate().filter(|(_, contender)| contender.twin_of.is_none()).collect()
}

/// "212k" and "at 120", that with its marks.
pub fn words(peak: &Peak) -> (String, String) {
    let end = if peak.at_the_end { " →" } else { "" };
    let bound = if peak.load_bound { " ‡" } else { "" };
    (count(peak.requests_per_second), format!("at {}{end}{bound}", peak.connections))
}

/// Of what part of their cores the peaks are, in a sentence; none if servers had all of their cores.
pub fn share_words(sweeps: &[Sweep]) -> Option<String> {
    let mut shares: Vec<String> = Vec::new();
    for sweep in sweeps.iter().filter(|sweep| sweep.server_share < 1.0) {
        let share = format!("{:.0} %", sweep.server_share * 100.0);
        if !shares.contains(&share) {
            shares.push(share);
        }
    }
    (!shares.is_empty()).then(|| {
        let shares = shares.join(" or ");
        format!(
            "Servers had {shares} of their cores in these cells: a peak is that of such a part of a core."
        )
    })
}
