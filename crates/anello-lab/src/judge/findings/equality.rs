//! Copies of the reference that run as contenders with different names. Any difference claimed for them is a false
//! positive.

use super::counted;
use crate::result::measure::Measure;
use crate::result::{LabResult, Verdict};

/// Returns a sentence with the number of cells in which no difference between the reference and any of its copies was
/// claimed. A copy runs the same command with the same executables. The twin does not count as a copy, because the
/// resolution is computed from it. Returns `None` if there are no copies.
pub fn sentences(result: &LabResult) -> Option<String> {
    let reference = result.contenders.iter().find(|record| record.name == result.plan.reference)?;
    let copies: Vec<&str> = result
        .contenders
        .iter()
        .filter(|record| record.twin_of.is_none() && record.name != reference.name)
        // A command contains only the file name of the executable, so two builds can have the same command. Their
        // hashes differ.
        .filter(|record| record.command == reference.command && record.executables == reference.executables)
        .map(|record| record.name.as_str())
        .collect();
    let (mut quiet, mut judged, mut noisy) = (0, 0, 0);
    for cell in &result.cells {
        let of_copies = cell.rows.iter().filter(|row| copies.contains(&row.contender.as_str()));
        let verdicts: Vec<Verdict> = of_copies
            .flat_map(|row| Measure::ALL.map(|measure| measure.verdict(row)))
            .filter(|verdict| *verdict != Verdict::NotComparable)
            .collect();
        judged += usize::from(!verdicts.is_empty());
        let claimed = verdicts.iter().any(|verdict| matches!(verdict, Verdict::More | Verdict::Less));
        quiet += usize::from(!verdicts.is_empty() && !claimed);
        noisy += usize::from(!verdicts.is_empty() && verdicts.iter().all(|&of| of == Verdict::TooNoisy));
    }
    (judged > 0).then(|| {
        format!(
            "Equal {}s: {} the same command as {}. No difference was claimed in {quiet} of {}; {noisy} of them were \
             too noisy for a verdict.",
            result.workload().server_noun(),
            if let [one] = copies[..] { format!("{one} is") } else { format!("{} are", copies.join(", ")) },
            reference.name,
            counted(judged, "cell")
        )
    })
}
