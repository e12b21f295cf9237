//! Where the rate of each contender peaks while connections rise.

use crate::judge::peak::{Peak, sweeps};
use crate::judge::published::{PEAKS_OF, peak as published_peak};
use crate::plan::cell::{Group, Workload};
use crate::report::format::count;
use crate::report::html::{Page, View};
use crate::report::peaks;
use crate::report::svg::escape;
use crate::result::ContenderRecord;

impl Page {
    /// A row for each contender, a column for each sweep; nothing if the run has none.
    pub(super) fn peaks(&mut self, view: &View<'_>) {
        let sweeps = sweeps(view.result);
        if sweeps.is_empty() {
            return;
        }
        let contenders = peaks::contenders(view.result);
        let is_published = |contender: &ContenderRecord| {
            sweeps.iter().any(|sweep| published_words(contender, &sweep.group).is_some())
        };
        let beside = if contenders.iter().any(|(_, contender)| is_published(contender)) {
            format!(
                " In italics: the peak that was published for it ({PEAKS_OF}; another machine, four client cores), to be \
                 read as a multiple of the others in its column alone."
            )
        } else {
            String::new()
        };
        let share = peaks::share_words(&sweeps).map_or_else(String::new, |words| format!(" {words}"));
        self.add(&format!(
            "<h2>Peak</h2>\n<p class=\"lead\">The highest of each contender's medians while connections rise, and at how \
             many it stands. → at the most that it was measured with: its peak may lie beyond. ‡ the load set the \
             pace.{share}{beside}</p>"
        ));
        let heads: String = sweeps
            .iter()
            .map(|sweep| format!("<th scope=\"col\">{}</th>", escape(&sweep.group.to_string())))
            .collect();
        self.add(&format!(
            "<div class=\"scroll\"><table class=\"glance\">\n<thead><tr><th scope=\"col\">Requests/s <small>more is \
             better</small></th>{heads}</tr></thead>\n<tbody>"
        ));
        for (index, contender) in contenders {
            let cell = |(group, peak): (&Group, Option<Peak>)| {
                let published = published_words(contender, group);
                let published = published.map_or_else(String::new, |words| format!("<br>{words}"));
                format!("<td>{}{published}</td>", peak_words(peak))
            };
            let row: String = sweeps.iter().map(|sweep| cell((&sweep.group, sweep.peaks[index]))).collect();
            let reference = if contender.name == view.result.plan.reference { " reference" } else { "" };
            self.add(&format!(
                "<tr class=\"c{index}{reference}\"><th scope=\"row\">{}</th>{row}</tr>",
                view.named(index)
            ));
        }
        self.add("</tbody>\n</table></div>");
    }
}

/// "212k at 120" with its marks.
fn peak_words(peak: Option<Peak>) -> String {
    let Some(peak) = peak else { return "–".to_owned() };
    let (rate, place) = peaks::words(&peak);
    format!("{rate} <small>{place}</small>")
}

/// The peak that was published of a contender of this name, in the same words.
fn published_words(contender: &ContenderRecord, group: &Group) -> Option<String> {
    let Workload::Echo { message_bytes } = group.workload else { return None };
    let figure = published_peak(&contender.name, message_bytes, group.server_cores)?;
    let (rate, connections) = (count(figure.requests_per_second?), figure.cell.connections);
    Some(format!("<i class=\"other\">{rate} <small>at {connections}</small></i>"))
}
