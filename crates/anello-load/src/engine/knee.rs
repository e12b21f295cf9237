//! Detection of the rate at which a server saturates.

use crate::model::config::Knee;
use crate::model::report::Step;

/// Returns the reason why the server did not keep up with the last of `steps`, or `None` if it did.
pub(crate) fn saturation_reason(knee: &Knee, steps: &[Step]) -> Option<String> {
    let (first, last) = (steps.first()?, steps.last()?);
    // Relative to the offered requests. They differ from the nominal rate during a ramp and with Poisson arrivals.
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
    fn step(per_second: u64, answered_per_second: f64, latency_ns: u64) -> Step {
        let mut total = Interval::empty(0, true);
        total.latency.saturating_record(latency_ns);
        total.counts.offered = Some(per_second);
        Step {
            per_second,
            answered_per_second,
            answered_in_time: answered_per_second as u64,
            total: (&total).into(),
            schedule_error: None,
            load_was_bottleneck: false,
        }
    }

    #[test]
    fn saturation_reported_for_missing_or_slow_replies() {
        let knee = Knee::default();
        let first = step(1000, 960.0, 100_000);
        assert_eq!(saturation_reason(&knee, &[]), None);
        assert_eq!(saturation_reason(&knee, std::slice::from_ref(&first)), None);
        assert_eq!(saturation_reason(&knee, &[first.clone(), step(2000, 1990.0, 900_000)]), None);
        let missing = saturation_reason(&knee, &[first.clone(), step(2000, 1890.0, 100_000)]).unwrap();
        assert!(missing.contains("94.5 %"), "{missing}");
        let slow = saturation_reason(&knee, &[first.clone(), step(2000, 2000.0, 1_100_000)]).unwrap();
        assert!(slow.contains("11.0 times"), "{slow}");
        assert!(
            saturation_reason(&knee, &[step(1000, 900.0, 1)]).is_some(),
            "the first step can be saturated"
        );
        let mut few = step(1000, 800.0, 1);
        few.total.counts.offered = Some(820);
        assert_eq!(
            saturation_reason(&knee, &[few]),
            None,
            "relative to the offered requests, not to the rate"
        );
        let lenient = Knee { min_answered_percent: 50, max_latency_factor: 100 };
        assert_eq!(saturation_reason(&lenient, &[first, step(2000, 1100.0, 1_100_000)]), None);
    }
}
