//! Tests for the published tables and the verdicts on published ratios.

use anello_lab::measure::Measure;
use anello_lab::published::{Figure, Judgement, SOURCES, Source, judge, parse, peak};
use anello_lab::result::Ratio;
use anello_lab::{Target, Workload};

fn ratio(low: f64, estimate: f64, high: f64) -> Ratio {
    Ratio { estimate, low, high, pairs: 9, passes: 9, stretch: 1.0 }
}

#[test]
fn parses_all_published_tables() {
    let rows = |source: &Source| {
        parse(source.table()).unwrap_or_else(|error| panic!("{}: {error}", source.key)).len()
    };
    assert_eq!(SOURCES.iter().map(rows).collect::<Vec<_>>(), [36, 8, 125, 72, 18, 5, 5]);
}

#[test]
fn judge_ahead_requires_half_of_published_difference() {
    assert_eq!(judge(1.5, ratio(1.40, 1.45, 1.60)), Judgement::Confirmed);
    assert_eq!(judge(1.5, ratio(1.80, 1.90, 2.00)), Judgement::Confirmed, "more than was claimed");
    assert_eq!(judge(1.5, ratio(1.18, 1.25, 1.30)), Judgement::Confirmed, "more than half");
    assert_eq!(judge(1.5, ratio(0.99, 1.02, 1.05)), Judgement::Refuted);
    assert_eq!(judge(1.5, ratio(1.10, 1.12, 1.15)), Judgement::Refuted, "significant, but less than half");
    assert_eq!(judge(1.5, ratio(0.60, 0.70, 0.80)), Judgement::Refuted, "the opposite direction");
    assert_eq!(judge(1.5, ratio(0.90, 1.20, 1.55)), Judgement::Inconclusive);
}

#[test]
fn judge_is_symmetric_for_inverse_ratios() {
    for (low, estimate, high) in
        [(1.40, 1.45, 1.60), (0.99, 1.02, 1.05), (0.60, 0.70, 0.80), (0.90, 1.20, 1.55), (1.1, 1.2, 1.3)]
    {
        let forward = judge(1.5, ratio(low, estimate, high));
        assert_eq!(judge(1.0 / 1.5, ratio(1.0 / high, 1.0 / estimate, 1.0 / low)), forward);
    }
}

#[test]
fn judge_equal_requires_narrow_interval() {
    assert_eq!(judge(1.02, ratio(0.97, 1.01, 1.05)), Judgement::Confirmed);
    assert_eq!(judge(0.97, ratio(1.06, 1.20, 1.30)), Judgement::Refuted);
    assert_eq!(judge(1.00, ratio(0.80, 1.00, 1.20)), Judgement::Inconclusive);
}

#[test]
fn published_echo_ratios_match_manual_calculation() {
    let find = |key: &str, pair: usize, connections: usize, bytes: usize, measure: Measure| {
        let source = SOURCES.iter().find(|source| source.key == key).unwrap();
        let figures = parse(source.table()).unwrap();
        let pairs = source.pairs[pair].figures(&figures);
        let matches = |(one, _): &&(&Figure, &Figure)| {
            one.cell.connections == connections
                && one.cell.workload == Workload::Echo { message_bytes: bytes }
                && one.cell.server_cores == 1
        };
        let (one, other) = pairs.iter().find(matches).unwrap();
        match measure {
            Measure::Cpu => one.cpu_ns_per_request().unwrap() / other.cpu_ns_per_request().unwrap(),
            _ => one.requests_per_second.unwrap() / other.requests_per_second.unwrap(),
        }
    };
    let near = |actual: f64, expected: f64| assert!((actual - expected).abs() < 5e-4, "{actual} {expected}");
    near(find("frevib", 0, 300, 128, Measure::Rate), 1.4887); // 216637 / 145517
    near(find("frevib", 0, 500, 128, Measure::Rate), 1.6848); // 211280 / 125402
    near(find("frevib", 0, 1, 1000, Measure::Rate), 1.0647); // 14024 / 13172
    near(find("joakimthun", 0, 512, 1024, Measure::Rate), 0.8744); // 354244 / 405133
    near(find("monoio-peak", 0, 560, 1024, Measure::Rate), 1.1691); // 223168 / 190892
    near(find("monoio-fixed", 0, 1000, 1024, Measure::Cpu), 0.9427); // 21.4 / 22.7 at 40000 each
    near(find("go-uring", 0, 100, 128, Measure::Rate), 0.2578); // 34202 / 132664
    near(find("go-uring", 1, 500, 128, Measure::Rate), 0.9152); // 134863 / 147362
}

#[test]
fn published_http_ratios_match_manual_calculation() {
    let ratios = |key: &str, pair: usize| -> Vec<(Target, f64)> {
        let source = SOURCES.iter().find(|source| source.key == key).unwrap();
        let figures = parse(source.table()).unwrap();
        let ratio = |(one, other): (&Figure, &Figure)| {
            (
                one.cell.workload.target().unwrap(),
                one.requests_per_second.unwrap() / other.requests_per_second.unwrap(),
            )
        };
        source.pairs[pair].figures(&figures).into_iter().map(ratio).collect()
    };
    assert_eq!(ratios("chen622", 0), [(Target::Fixed, 717.7 / 1878.5)]);
    assert_eq!(ratios("chen622", 1), [(Target::Page, 615.0 / 592.8), (Target::Fixed, 713.7 / 717.7)]);
    assert_eq!(ratios("chen622", 2), [(Target::Fixed, 713.7 / 1878.5)]);
    assert_eq!(ratios("chen622-nginx", 0), [(Target::Large, 322.0 / 346.0)]);
    assert_eq!(ratios("chen622-nginx", 1), [(Target::Large, 321.0 / 346.0)]);
}

#[test]
fn columns_with_equal_heading_stay_separate() {
    let source = SOURCES.iter().find(|source| source.key == "go-uring").unwrap();
    let figures = parse(source.table()).unwrap();
    let rates: Vec<f64> = source.pairs[0]
        .figures(&figures)
        .iter()
        .filter(|(one, _)| one.cell.connections == 1000)
        .filter(|(one, _)| one.cell.workload == Workload::Echo { message_bytes: 128 })
        .filter_map(|(one, other)| Some(one.requests_per_second? / other.requests_per_second?))
        .collect();
    assert_eq!(rates.len(), 2);
    assert!(
        (rates[0] - 139_313.0 / 139_171.0).abs() < 1e-9 && (rates[1] - 158_483.0 / 133_480.0).abs() < 1e-9
    );
}

#[test]
fn local_counterparts_use_published_kind_of_io() {
    let drivers = [("io_uring", "epoll"), ("epoll", "io_uring")];
    for pair in SOURCES.iter().flat_map(|source| &source.pairs) {
        let counterparts = pair.ours.iter().flat_map(|(one, to)| [(one, &pair.server), (to, &pair.to)]);
        for (ours, published) in counterparts {
            let other = drivers.iter().find(|(driver, _)| *driver == published).map(|(_, other)| *other);
            assert!(other.is_none_or(|other| !ours.contains(other)), "{ours} for {published}");
        }
    }
}

#[test]
fn every_claim_matches_cells_of_its_table() {
    for source in SOURCES.iter() {
        let figures = parse(source.table()).unwrap();
        for claim in &source.claims {
            let pairs = source.pairs[claim.pair].figures(&figures);
            assert!(pairs.iter().any(|(one, _)| claim.concerns(&one.cell)), "{}", claim.words);
            assert!(source.pairs[claim.pair].measures.contains(&claim.measure), "{}", claim.words);
        }
    }
}

#[test]
fn parses_table_of_peaks() {
    assert_eq!(
        parse(include_str!("../../published/monoio_2021_best.csv")).map(|figures| figures.len()),
        Ok(21)
    );
}

#[test]
fn peak_is_found_by_server_size_and_cores() {
    let published = |server: &str, bytes, cores| {
        peak(server, bytes, cores).map(|figure| (figure.cell.connections, figure.requests_per_second))
    };
    assert_eq!(published("Monoio", 100, 1), Some((600, Some(232_888.0))));
    assert_eq!(published("tokio", 100, 16), Some((4480, Some(908_179.0))));
    assert_eq!(
        [published("tokio", 1024, 1), published("anello epoll", 100, 1), published("tokio", 100, 3)],
        [None; 3]
    );
}

#[test]
fn parse_error_names_line_and_problem() {
    let error = |text: &str| parse(text).unwrap_err().to_string();
    assert_eq!(error(""), "line 1: is empty");
    let short = error("server,connections,message_bytes\na,1");
    assert!(short.starts_with("line 2: ") && short.contains("2 fields"), "{short}");
    let invalid = error("server,connections,message_bytes\na,x,1");
    assert!(invalid.starts_with("line 2: ") && invalid.contains("invalid digit"), "{invalid}");
    assert!(error("server,connections,message_bytes,requests_per_second\na,1,1,-5").contains("-5"));
    assert!(error("server,connections\na,1").contains("message_bytes"));
    assert!(error("server,connections,target\na,1,/x").contains("unknown target \"/x\""));
}

#[test]
fn empty_field_is_parsed_as_none() {
    let figures = parse("server,message_bytes,connections,requests_per_second\nepoll,1024,1024,\n").unwrap();
    assert_eq!((figures[0].requests_per_second, figures[0].cell.server_cores), (None, 1));
}
