//! Counts as written on the command line.

/// Returns a parser for whole numbers from 1 to `max`.
pub fn up_to(max: usize) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |text| {
        let count = text.parse().ok().filter(|count| (1..=max).contains(count));
        count.ok_or_else(|| format!("expected a whole number from 1 to {max}"))
    }
}
