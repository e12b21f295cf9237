//! Detection of the rate at which a server saturates.

use crate::model::config::Knee;
use crate::model::report::Step;

/// Returns the reason why the server did not keep up with the last of `steps`, or `None` if it did.
pub(crate) fn saturation_reason(knee: &Knee, steps: &[Step]) -> Option<String> {
    let (first, last) = (steps.first()?, steps.last()?);
    // Relative to the offered requests, which differ from the nominal rate during a ramp and with Poisson arrivals.
    let offered = last.total.counts.offered.filter(|&offered| offered > 0);
    let percent = offered.map(|offered| last.answered_in_time as f64 * 100.0 / offered as f64);
    if let Some(percent) = percent.filter(|&percent| percent < f64::from(knee.min_answered_percent)) {
        return Some(format!(
            "only {percent:.1} % of the offered requests were answered in time (minimum {} %)",
            knee.min_answered_percent
        ));
    }
    let p99_ns = |step: &Step| step.total.latency.map(|latency| latency.p99_ns);
    let (last_ns, first_ns) = (p99_ns(last)?, p99_ns(first)?);
    let limit_ns = first_ns.saturating_mul(u64::from(knee.max_latency_factor));
    (steps.len() > 1 && last_ns > limit_ns).then(|| {
        let factor = last_ns as f64 / first_ns.max(1) as f64;
        format!(
            "p99 latency is {factor:.1} times that of the first step (maximum {})",
            knee.max_latency_factor
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::interval::Interval;

    /// Returns a step of one second.
    fn step(answered: u64, offered: u64, latency_ns: u64) -> Step {
        let mut total = Interval::empty(0, true);
        total.latency.saturating_record(latency_ns);
        total.counts.offered = Some(offered);
        Step {
            per_second: 1000,
            answered_per_second: answered as f64,
            answered_in_time: answered,
            total: (&total).into(),
            schedule_error: None,
            load_was_bottleneck: false,
        }
    }

    #[test]
    fn saturation_reported_for_missing_or_slow_replies() {
        let (knee, first) = (Knee::default(), step(960, 1000, 100_000));
        let second = |answered, latency_ns| vec![first.clone(), step(answered, 2000, latency_ns)];
        let lenient = Knee { min_answered_percent: 50, max_latency_factor: 100 };
        for (knee, steps, expected) in [
            (knee, vec![], None),
            (knee, vec![first.clone()], None),
            (knee, second(1990, 900_000), None),
            (knee, second(1890, 100_000), Some("94.5 %")),
            (knee, second(2000, 1_100_000), Some("11.0 times")),
            // Even the first step can be saturated.
            (knee, vec![step(900, 1000, 1)], Some("90.0 %")),
            // Relative to the offered requests, not to the rate.
            (knee, vec![step(800, 820, 1)], None),
            (lenient, second(1100, 1_100_000), None),
        ] {
            let reason = saturation_reason(&knee, &steps);
            assert_eq!(reason.is_some(), expected.is_some(), "{reason:?}, expected {expected:?}");
            assert!(reason.unwrap_or_default().contains(expected.unwrap_or_default()), "{expected:?}");
        }
    }
}
