//! Reports as text: for the terminal, and as Markdown for documents.

use crate::judge::findings;
use crate::judge::statistics::CONFIDENCE;
use crate::report::format::milliseconds;
use crate::report::table::{Table, push_line, wrap};
use crate::report::{details, figures, ratios};
use crate::result::time::readable_time;
use crate::result::{ContenderRecord, LabResult};

/// Number of cells above which the terminal shows ratios without intervals and omits the figures of individual cells.
const MAX_DETAILED_CELLS: usize = 12;

/// Renders the result for a terminal, at most 108 columns wide.
#[must_use]
pub fn render_table(result: &LabResult) -> String {
    let is_detailed = result.cells.len() <= MAX_DETAILED_CELLS;
    let mut text = String::new();
    wrap(&mut text, "", &findings::conclusion(result));
    let methods = result.methods();
    if !methods.is_empty() {
        wrap(&mut text, "", &format!("Method: {methods}."));
    }
    if let Some(path) = &result.plan.network {
        wrap(&mut text, "", &format!("Network: {path}."));
    }
    if result.interrupted {
        push_line(&mut text, "The run was stopped early.");
    }
    let mut add = |tables: Vec<Table>, with_details: bool| {
        for table in tables.iter().filter(|table| !table.rows.is_empty()) {
            text += &table.to_text(with_details);
        }
    };
    add(reference_tables(result, usize::MAX), is_detailed);
    add(comparisons(result), true);
    add(base_tables(result), true);
    add(vec![ratios::peaks(result)], true);
    add(result.groups().iter().map(|group| figures::bars(result, group)).collect(), true);
    if is_detailed {
        add(result.cells.iter().map(|cell| figures::of_cell(result, cell)).collect(), true);
    } else {
        push_line(&mut text, "\nAll figures of all cells are in the HTML report and the JSON.");
    }
    push_line(&mut text, "");
    wrap(&mut text, "", &format!("{} {}", ratios::SIGNS, figures::COLUMNS));
    text += &details::facts(result).to_list();
    text += &details::failures(result).to_list();
    let (plan, environment) = (&result.plan, &result.environment);
    push_line(&mut text, "");
    let line = format!(
        "{}; {}; {}; cores {:?} (servers) and {:?} (load); seed {}",
        readable_time(result.started_unix_s),
        environment.kernel,
        environment.cpu_model,
        plan.server_cores,
        plan.load_cores,
        plan.seed
    );
    wrap(&mut text, "", &line);
    text
}

/// Renders several results as Markdown, with tables for documents.
#[must_use]
pub fn render_markdown(results: &[LabResult]) -> String {
    results.iter().map(document).collect::<Vec<_>>().join("\n")
}

fn document(result: &LabResult) -> String {
    let (plan, scenario) = (&result.plan, &result.plan.scenario);
    let mut text = format!("## {}: {}\n\n{}\n", scenario.name, scenario.title, findings::conclusion(result));
    let methods = result.methods();
    let groups = result.groups();
    let against_peers = anello_contenders(result)
        .flat_map(|own| groups.iter().flat_map(move |group| ratios::against_peers(result, group, &own.name)));
    let tables = [
        // One measure is enough: the table of standings below covers the others.
        reference_tables(result, 1),
        comparisons(result),
        against_peers.collect(),
        base_tables(result),
        vec![ratios::reference_standings(result), ratios::peaks(result)],
    ];
    for table in tables.concat().iter().filter(|table| !table.rows.is_empty()) {
        text += &table.to_markdown();
    }
    text += &format!(
        "\n{}, {} passes of {} rounds, slices of {}; intervals of {:.0} %.{} {}\n",
        readable_time(result.started_unix_s),
        plan.passes,
        plan.rounds,
        milliseconds(plan.slice_ns),
        CONFIDENCE * 100.0,
        if methods.is_empty() { String::new() } else { format!(" Method: {methods}.") },
        ratios::SIGNS
    );
    text
}

fn anello_contenders(result: &LabResult) -> impl Iterator<Item = &ContenderRecord> {
    result.contenders.iter().filter(|own| !findings::peers_of(result, &own.name).is_empty())
}

/// Returns tables of the ratios to the reference, one for each of the first `max_measures` measures of each group.
fn reference_tables(result: &LabResult, max_measures: usize) -> Vec<Table> {
    let tables = result.groups().into_iter().flat_map(|group| {
        let measures = result.measures_of(&group).iter().take(max_measures);
        measures.map(move |measure| ratios::against_reference(result, &group, *measure))
    });
    tables.collect()
}

fn base_tables(result: &LabResult) -> Vec<Table> {
    result.groups().iter().flat_map(|group| ratios::against_bases(result, group)).collect()
}

fn comparisons(result: &LabResult) -> Vec<Table> {
    let standings = anello_contenders(result).filter_map(|own| ratios::peer_standings(result, &own.name));
    let decided = [ratios::decisions(result), ratios::losses(result), ratios::runtimes(result)];
    decided.into_iter().chain(standings).collect()
}
