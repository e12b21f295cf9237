//! Copies of the reference that compete under names of their own: whatever is claimed of them is wrong.

use super::counted;
use crate::measure::Measure;
use crate::result::{LabResult, Verdict};

/// In how many cells no difference was claimed between the reference and each copy of it, and all of them together.
/// Nothing if nobody runs the reference's program by its command but itself and its twin, whose own noise is the measure.
pub fn sentences(result: &LabResult) -> Option<String> {
    let reference = result.contenders.iter().find(|record| record.name == result.plan.reference)?;
    let copies: Vec<&str> = result
        .contenders
        .iter()
        .filter(|record| record.twin_of.is_none() && record.name != reference.name)
        // A command names its program by its last name only: two builds have the same, and other hashes.
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
            "Equal {}s: {} the same command as {}. No difference was claimed in {quiet} of {}; {noisy} of them were too \
             noisy to tell anything.",
            result.workload().server_noun(),
            if let [one] = copies[..] { format!("{one} is") } else { format!("{} are", copies.join(", ")) },
            reference.name,
            counted(judged, "cell")
        )
    })
}
