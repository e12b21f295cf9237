//! The report of `anello load` as a text table.

use anello_load::{Arrivals, Latency, Mode, ProtocolReport, Report, Step, Sweep};

use crate::common::format::{format_count, format_ns, group_digits};

const NAME_WIDTH: usize = 14;

/// Minimum plausible server CPU time per request. A lower value means that another process served the requests.
const MIN_PLAUSIBLE_CPU_NS: f64 = 20.0;

/// Delay after the configured start time above which there is a warning. A load normally starts within a millisecond.
const START_DELAY_THRESHOLD_NS: u64 = 10_000_000;

pub fn render(report: &Report) -> String {
    let mut table = Table::default();
    let check = if report.verified { "every byte verified" } else { "bytes counted, not verified" };
    table.line("server", &format!("{}  ({}, {check})", report.target, protocol(&report.protocol)));
    let is_part = report.run.shard.as_ref().is_some_and(|shard| shard.count > 1);
    let all = if is_part { ", over all shards" } else { "" };
    table.line("load", &load(report, all));
    if let Some(shard) = &report.run.shard {
        table.line("shard", &format!("{shard}, from {}", shard.source));
    }
    table.line("connections", &connections(report));
    tls(&mut table, report);
    let interrupted = if report.interrupted { ", interrupted" } else { "" };
    let abandoned = match report.abandoned {
        0 => String::new(),
        count => format!(", {} abandoned", format_count(count)),
    };
    let seconds = report.elapsed_ns as f64 / 1e9;
    let requests = format_count(report.requests);
    table.line("requests", &format!("{requests} in {seconds:.3} s{interrupted}{abandoned}"));
    if !report.pauses.is_empty() {
        let total_s = report.pauses.iter().map(|pause| pause.elapsed_ns).sum::<u64>() as f64 / 1e9;
        let pauses = report.pauses.iter().map(|pause| format!("{:.1} s", pause.start_ns as f64 / 1e9));
        let starts = pauses.collect::<Vec<_>>().join(", ");
        table.line("pauses", &format!("{total_s:.3} s in total, not counted in the rate; at {starts}"));
    }
    if report.steps.is_empty() {
        table.line("requests/s", &rate(report));
        schedule(&mut table, report);
        latency(&mut table, report);
    } else {
        steps(&mut table, report);
    }
    // Omitted for a sweep, because the spread describes only its last step.
    let has_spread = report.connections > 1 && report.steps.is_empty();
    if let Some(spread) = report.requests_per_connection.filter(|_| has_spread) {
        let counts = [("min", spread.min), ("median", spread.median), ("max", spread.max)];
        let counts = counts.map(|(name, count)| format!("{name} {}", format_count(count)));
        table.line("spread", &format!("{} requests per connection", counts.join("   ")));
    }
    costs(&mut table, report);
    if report.errors.is_empty() {
        table.line("errors", "none");
    }
    for error in report.errors.iter() {
        table.line("ERRORS", &format!("{} × {}: {}", format_count(error.count), error.kind, error.example));
    }
    warnings(&mut table, report);
    table.0
}

#[derive(Default)]
struct Table(String);

impl Table {
    fn line(&mut self, name: &str, value: &str) {
        self.0 += &format!("{name:<NAME_WIDTH$}{value}\n");
    }

    fn warn(&mut self, text: &str) {
        self.line("WARNING", text);
    }

    fn row(&mut self, name: &str, cells: &[String]) {
        let cells: String = cells.iter().map(|cell| format!("{cell:>11}")).collect();
        self.line(name, &cells);
    }
}

fn protocol(protocol: &ProtocolReport) -> String {
    match protocol {
        ProtocolReport::Messages { request_bytes, response_bytes } => {
            let (request, response) = (format_count(*request_bytes), format_count(*response_bytes));
            match request == response {
                true => format!("echo of {request} bytes"),
                false => format!("requests of {request} bytes, replies of {response} bytes"),
            }
        }
        ProtocolReport::Http { method, body_bytes, paths, path_count, keep_alive, pipeline } => {
            let mut text = match paths.as_slice() {
                [path] => format!("{method} {path}"),
                _ => format!("{method} of {} paths", format_count(*path_count)),
            };
            if *body_bytes > 0 {
                text += &format!(" with {} bytes", format_count(*body_bytes));
            }
            if *pipeline > 1 {
                text += &format!(", pipeline depth {pipeline}");
            }
            if !keep_alive {
                text += ", one connection per request";
            }
            text
        }
        other => format!("{other:?}"),
    }
}

/// Describes how the requests are scheduled.
pub fn mode(mode: &Mode) -> String {
    let schedule = |arrivals: &Arrivals, seed| match arrivals {
        Arrivals::Poisson => format!("Poisson (seed {seed})"),
        Arrivals::Constant => "constant".to_owned(),
        other => format!("{other:?}"),
    };
    match mode {
        Mode::Closed { think_time } if think_time.is_zero() => "closed loop".to_owned(),
        Mode::Closed { think_time } => {
            format!("closed loop, think time {}", format_ns(think_time.as_nanos() as f64))
        }
        Mode::Open { per_second, arrivals, seed } => {
            format!("open loop, {} requests/s, {}", format_count(*per_second), schedule(arrivals, *seed))
        }
        Mode::Sweep(Sweep { first, last, step, arrivals, seed, .. }) => {
            let [first, last, step] = [*first, *last, *step].map(format_count);
            let schedule = schedule(arrivals, *seed);
            format!("open loop, {first} to {last} requests/s in steps of {step}, {schedule}")
        }
        other => format!("{other:?}"),
    }
}

fn load(report: &Report, all: &str) -> String {
    let mode = mode(&report.mode) + if report.offered.is_some() { all } else { "" };
    let (threads, plural) = (report.threads, if report.threads == 1 { "" } else { "s" });
    let cores: Vec<String> = report.cores.iter().map(usize::to_string).collect();
    let cores = if cores.is_empty() { String::new() } else { format!(" on core {}", cores.join(",")) };
    format!("{mode}; {threads} thread{plural}{cores}, {}", report.driver)
}

fn connections(report: &Report) -> String {
    let mut text = format_count(report.connections);
    if report.connections_opened < report.connections {
        text = format!("{} of {text}", format_count(report.connections_opened));
    }
    if report.connections_open_at_end < report.connections_opened {
        text += &format!(", {} left at the end", format_count(report.connections_open_at_end));
    }
    if report.connections_reopened > 0 {
        text += &format!(", reopened {} times", format_count(report.connections_reopened));
    }
    if report.connections < report.all_connections {
        text += &format!(", of {} over all shards", format_count(report.all_connections));
    }
    if report.source_addresses.len() > 1 {
        text += &format!(", from {} addresses", report.source_addresses.len());
    }
    if report.ramp_ns > 0 {
        text += &format!(", opened over {}", format_ns(report.ramp_ns as f64));
    }
    text
}

fn tls(table: &mut Table, report: &Report) {
    let Some(tls) = &report.tls else { return };
    for kind in &tls.handshakes {
        table.line("TLS", &format!("{} × {}", format_count(kind.count), kind.in_words()));
    }
    if !tls.certificates_verified {
        table.warn("certificates were not verified: the identity of the server is unknown");
    }
}

/// Returns the requests per second. If the last replies arrived much later than planned, adds the number of requests
/// answered within the planned duration, on which the rate is based.
fn rate(report: &Report) -> String {
    let mut text = group_digits(report.requests_per_second);
    if report.answered_in_time > 0 && report.elapsed_ns > report.in_time_ns.saturating_mul(11) / 10 {
        let (count, seconds) = (report.answered_in_time as f64, report.in_time_ns as f64 / 1e9);
        let count = group_digits(count);
        text += &format!("  ({count} in the first {seconds:.3} s; the others were still pending)");
    }
    text
}

fn schedule(table: &mut Table, report: &Report) {
    let Some(offered) = report.offered else { return };
    let share = |count: u64| {
        let percent = count as f64 * 100.0 / offered.max(1) as f64;
        if count == 0 { "0".to_owned() } else { format!("{} ({percent:.2} %)", format_count(count)) }
    };
    let (offered, late, unsent) = (format_count(offered), share(report.late), share(report.unsent));
    table.line("schedule", &format!("{offered} offered, {late} sent more than 1 ms late, {unsent} not sent"));
}

fn latency(table: &mut Table, report: &Report) {
    let Some(latency) = &report.latency else {
        return table.line("latency", "no responses");
    };
    table.row("latency", &["p50", "p90", "p99", "p99.9", "max", "mean"].map(str::to_owned));
    // A closed loop has no schedule: a request is due when it is sent.
    if report.uncorrected_latency.is_some() {
        table.row("  since due", &latency_cells(latency));
    }
    table.row("  since sent", &latency_cells(report.uncorrected_latency.as_ref().unwrap_or(latency)));
    if let Some(error) = &report.schedule_error {
        table.row("  schedule lag", &latency_cells(error));
    }
}

fn latency_cells(latency: &Latency) -> [String; 6] {
    let Latency { p50_ns, p90_ns, p99_ns, p999_ns, max_ns, mean_ns, .. } = *latency;
    let [p50, p90, p99, p999, max] = [p50_ns, p90_ns, p99_ns, p999_ns, max_ns].map(|ns| format_ns(ns as f64));
    [p50, p90, p99, p999, max, format_ns(mean_ns)]
}

fn steps(table: &mut Table, report: &Report) {
    let names = ["answered/s", "p50", "p99", "p99.9", "max", "late", "not sent", "server CPU"];
    table.row("offered/s", &names.map(str::to_owned));
    for (number, step) in report.steps.iter().enumerate() {
        let knee = report.knee.as_ref().is_some_and(|knee| knee.step == number);
        let marks = ["", " *", " !", " *!"][usize::from(knee) + 2 * usize::from(step.load_was_bottleneck)];
        table.row(&format!("  {}{marks}", format_count(step.per_second)), &step_cells(step));
    }
    match &report.knee {
        Some(knee) => table.line("* knee", &format!("{}/s: {}", format_count(knee.per_second), knee.why)),
        None if report.interrupted => table.line("knee", "not found: interrupted"),
        None if !has_last_step(report) => table.line("knee", "not found: no connection left"),
        None => table.line("knee", "none: the server kept up in all steps"),
    }
}

fn has_last_step(report: &Report) -> bool {
    let Mode::Sweep(Sweep { last, step, .. }) = report.mode else { return false };
    report.steps.last().is_some_and(|final_step| final_step.per_second.saturating_add(step) > last)
}

fn step_cells(step: &Step) -> [String; 8] {
    let total = &step.total;
    let [p50, p99, p999, max] = match &total.latency {
        None => ["-"; 4].map(str::to_owned),
        Some(Latency { p50_ns, p99_ns, p999_ns, max_ns, .. }) => {
            [p50_ns, p99_ns, p999_ns, max_ns].map(|&ns| format_ns(ns as f64))
        }
    };
    let answered = group_digits(step.answered_per_second);
    let cpu = total.server_cpu_ns_per_request.map_or("-".to_owned(), format_ns);
    let counts = &total.counts;
    [answered, p50, p99, p999, max, format_count(counts.late), format_count(counts.unsent), cpu]
}

fn costs(table: &mut Table, report: &Report) {
    let per_request = |cpu_ns: Option<f64>| {
        cpu_ns.map_or("no requests".to_owned(), |cpu_ns| format!("{} per request", format_ns(cpu_ns)))
    };
    if let Some(server) = &report.server {
        let mut text = per_request(server.cpu_ns_per_request);
        if let Some(count) = server.switches_per_request {
            text += &format!(", {count:.2} context switches per request");
        }
        text += &format!(", {:.1} MiB", server.usage.resident_bytes as f64 / f64::from(1 << 20));
        table.line("server CPU", &text);
    }
    let mut text = per_request(report.load_cpu_ns_per_request);
    text += &format!(", busiest thread {:.0} % busy", report.load_busy_percent);
    if report.load_pacing_ns > 0 {
        let threads_ns = report.elapsed_ns.saturating_mul(report.threads as u64);
        let percent = report.load_pacing_ns as f64 * 100.0 / threads_ns.max(1) as f64;
        text += &format!(", {percent:.0} % of the time spent on pacing");
    }
    table.line("load CPU", &text);
}

fn warnings(table: &mut Table, report: &Report) {
    let slow = report.steps.iter().filter(|step| step.load_was_bottleneck).count();
    let is_closed = matches!(report.mode, Mode::Closed { .. });
    if slow > 0 {
        let knee = report.knee.as_ref().and_then(|knee| report.steps.get(knee.step));
        let knee = knee.filter(|step| step.load_was_bottleneck).map_or("", |_| ", including the knee");
        let steps = report.steps.len();
        table.warn(&format!(
            "load generator saturated in {slow} of {steps} steps (!){knee} (increase --threads, or lower the rates)"
        ));
    } else if report.load_was_bottleneck && is_closed {
        let effect = "results describe the generator, not the server";
        table.warn(&format!("load generator saturated: {effect} (increase --threads)"));
    } else if report.load_was_bottleneck {
        table.warn("load generator saturated (increase --threads, or lower the rate)");
    }
    if report.ended_early() {
        let [elapsed, planned] = [report.elapsed_ns, report.duration_ns].map(|ns| format_ns(ns as f64));
        table.warn(&format!(
            "the load ended early, after {elapsed} of {planned}: no connection was left (--reconnect opens connections \
             again after errors)"
        ));
    }
    if let Some(clock) = report.clock.as_ref().filter(|clock| clock.start_delay_ns > START_DELAY_THRESHOLD_NS)
    {
        let delay = format_ns(clock.start_delay_ns as f64);
        let remedy = "start the process earlier, or use a later --start-at";
        table.warn(&format!("the load started {delay} late: requests due before were sent late ({remedy})"));
    }
    if let Some(server) = &report.server
        && server.cpu_ns_per_request.is_some_and(|cpu_ns| cpu_ns < MIN_PLAUSIBLE_CPU_NS)
    {
        let remedy = "set --server-pid to the ID of the serving process, such as an nginx worker";
        table.warn(&format!("process {} did not serve these requests ({remedy})", server.pid));
    }
    if let Some(stolen_ns) = report.stolen_ns.filter(|&stolen_ns| stolen_ns > 0) {
        let percent = stolen_ns as f64 * 100.0 / report.elapsed_ns.max(1) as f64;
        let affected = report.intervals.iter().filter(|interval| interval.stolen_ns.unwrap_or(0) > 0).count();
        let (time, intervals) = (format_ns(stolen_ns as f64), report.intervals.len());
        table.warn(&format!(
            "steal time: the hypervisor withheld {time} of CPU time ({percent:.1} % of a core), in {affected} of \
             {intervals} intervals"
        ));
    }
    // The corrected latency includes delays in the load generator itself.
    if let Some(p99_ns) = report.late_sends_p99_ns() {
        let lag = format_ns(p99_ns as f64);
        table.warn(&format!(
            "the load generator sent 1 % of the requests at least {lag} late; the latency since due includes this"
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::ops::ControlFlow;
    use std::time::Duration;

    use anello_load::{Knee, KneeReport, LoadConfig, Spread, run};

    use super::*;

    /// Returns the report of a sweep against a server that does not reply. No step is marked as saturated.
    fn sweep() -> Report {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let sweep = Sweep {
            first: 100,
            last: 250,
            step: 100,
            arrivals: Arrivals::Constant,
            seed: 1,
            knee: Knee { min_answered_percent: 0, max_latency_factor: 1 },
        };
        let load = LoadConfig {
            connections: 2,
            mode: Mode::Sweep(sweep),
            duration: Duration::from_millis(20),
            stall_timeout: Duration::from_millis(50),
            ..LoadConfig::echo(silent.local_addr().unwrap(), 1)
        };
        let outcome = run(&load, &anello::Runtime::builder(), |_| ControlFlow::Continue(()));
        let mut report = outcome.unwrap().report;
        report.load_was_bottleneck = false;
        report.steps.iter_mut().for_each(|step| step.load_was_bottleneck = false);
        report
    }

    #[test]
    fn incomplete_sweep_does_not_claim_that_server_kept_up() {
        let mut report = sweep();
        assert_eq!((report.steps.len(), report.connections_open_at_end), (1, 0), "{report:?}");
        let text = render(&report);
        assert!(text.contains("no connection left") && !text.contains("kept up"), "{text}");
        report.steps.push(Step { per_second: 200, ..report.steps[0].clone() });
        assert!(render(&report).contains("kept up in all steps"), "250 is not a step");
    }

    #[test]
    fn saturated_steps_are_marked_with_warning() {
        let mut report = sweep();
        assert!(!render(&report).contains("saturated"));
        report.steps.push(Step { load_was_bottleneck: true, ..report.steps[0].clone() });
        let text = render(&report);
        assert!(text.contains("  100 !") && text.contains("in 1 of 2 steps (!) ("), "{text}");
        report.knee = Some(KneeReport { step: 1, per_second: 100, why: "slow".to_owned() });
        let text = render(&report);
        assert!(text.contains("  100 *!") && text.contains("(!), including the knee ("), "{text}");
        report.requests_per_connection = Some(Spread { min: 1, median: 1, max: 1 });
        assert!(!render(&report).contains("spread"), "the spread describes only the last step");
    }
}
