//! Adding histograms that were not made alike.
//!
//! A histogram tells values apart by its *layout*: the smallest value it discerns, and its significant digits. The
//! buckets of a finer layout lie within those of a coarser one. So a sum in the coarser of two layouts is exact: every
//! value is in the bucket where recording would have put it, in whatever order sums are made. A sum in the finer layout
//! would pretend to know where in its bucket a value was.

use hdrhistogram::Histogram;

/// Adds `other` to `sum` exactly. `sum` takes the coarser of both layouts where they differ, and grows where `other` has
/// higher values than it can hold.
pub(crate) fn add(sum: &mut Histogram<u64>, other: &Histogram<u64>) {
    if sum.low() < other.low() || sum.sigfig() > other.sigfig() {
        let mut coarser = empty_in_coarser_layout(sum, other);
        append(&mut coarser, sum);
        *sum = coarser;
    }
    append(sum, other);
}

/// An empty histogram in the coarser of both layouts with the wider range.
fn empty_in_coarser_layout(one: &Histogram<u64>, other: &Histogram<u64>) -> Histogram<u64> {
    let low = one.low().max(other.low());
    let high = one.high().max(other.high());
    // Valid because both are: `high` is at least twice the `low` of either, and the one that `low` comes from has at
    // least as many digits beyond it.
    Histogram::new_with_bounds(low, high, one.sigfig().min(other.sigfig()))
        .expect("the coarser layout of two valid histograms is valid")
}

/// Adds to a histogram whose layout is as coarse or coarser.
fn append(sum: &mut Histogram<u64>, other: &Histogram<u64>) {
    let grows = sum.is_auto_resize();
    sum.auto(true);
    sum.add(other).expect("a histogram that may grow takes any value");
    sum.auto(grows);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(low: u64, high: u64, digits: u8, values: impl IntoIterator<Item = u64>) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(low, high, digits).unwrap();
        values.into_iter().for_each(|value| histogram.record(value).unwrap());
        histogram
    }

    fn counts(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
        let counts = histogram.iter_recorded();
        counts.map(|value| (value.value_iterated_to(), value.count_at_value())).collect()
    }

    #[test]
    fn a_sum_is_what_recording_all_in_the_coarser_layout_gives() {
        let makes =
            [(1, 60_000_000_000, 3), (1, 1_000_000, 5), (1000, 3_600_000_000_000, 2), (1, u64::MAX, 1)];
        let values = |seed: u64| (0..500).map(move |index| 1 + index * (seed + 7) * 131 % 900_000);
        for (first, (low, high, digits)) in makes.into_iter().enumerate() {
            for (second, (other_low, other_high, other_digits)) in makes.into_iter().enumerate() {
                let mut sum = of(low, high, digits, values(first as u64));
                add(&mut sum, &of(other_low, other_high, other_digits, values(second as u64)));
                let all = values(first as u64).chain(values(second as u64));
                let expected = of(low.max(other_low), high.max(other_high), digits.min(other_digits), all);
                assert_eq!(counts(&sum), counts(&expected), "{first} + {second}");
                assert_eq!((sum.len(), sum.max(), sum.min()), (1000, expected.max(), expected.min()));
            }
        }
    }

    #[test]
    fn a_sum_grows_to_hold_higher_values() {
        let mut sum = of(1, 1000, 3, [5]);
        let high = of(1, u64::MAX, 3, [1 << 62]);
        add(&mut sum, &high);
        assert_eq!((sum.len(), sum.max()), (2, high.max()));
        assert!(!sum.is_auto_resize());
    }
}
