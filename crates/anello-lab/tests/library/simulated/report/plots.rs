//! Tests for plots that are written to separate files.

use anello_lab::{Cell, render_html, render_plots};

use super::{check_markup, sample, simulate_in};
use crate::simulated::simulation::Noise;

#[test]
fn plots_are_standalone_svg_files() {
    let plots = render_plots(&sample());
    let names: std::collections::HashSet<&String> = plots.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), plots.len());
    for expected in [
        "echo-128-bytes-requests-s.svg",
        "echo-512-bytes-server-cpu-per-request.svg",
        "echo-128-bytes-latency-50.svg",
    ] {
        assert!(names.iter().any(|name| *name == expected), "{expected} is not among {names:?}");
    }
    for (name, svg) in &plots {
        check_markup(svg).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(svg.starts_with("<svg ") && svg.contains("xmlns=") && !svg.contains("var("), "{name}");
        assert!(svg.contains("anello io_uring"), "{name}");
    }
}

#[test]
fn latency_and_cpu_are_plotted_over_offered_rate() {
    let rated = [20_000, 50_000].map(|rate| Cell { offered_per_second: Some(rate), ..Cell::echo(128, 80) });
    let result = simulate_in(rated.to_vec(), Noise::USUAL);
    let (plots, page) = (render_plots(&result), render_html(&result));
    let names: Vec<&String> = plots.iter().map(|(name, _)| name).collect();
    for (name, title) in [
        ("median-latency", "Median latency, µs · less is better"),
        ("p99-latency", "p99 latency, µs · less is better"),
        ("server-cpu-per-request", "Server CPU per request, µs · less is better"),
        ("ratio-server-cpu-per-request", "Server CPU per request, × bare epoll · less is better"),
    ] {
        let file = format!("echo-128-bytes-80-connections-{name}.svg");
        let plot = plots.iter().find(|(name, _)| *name == file);
        let (_, svg) = plot.unwrap_or_else(|| panic!("{file} is not among {names:?}"));
        check_markup(svg).unwrap();
        for expected in [title, "requests/s offered", "20.0k", "50.0k"] {
            assert!(svg.contains(&format!("\n{expected}\n")), "{expected} is not in {svg}");
        }
        // Each contender has a point at each rate.
        let chart = charts(&page).into_iter().find(|chart| chart["title"] == title);
        let chart = chart.unwrap_or_else(|| panic!("{title} is not in the page"));
        assert_eq!(chart["x"], serde_json::json!([20_000.0, 50_000.0]));
        assert!(page.contains(&format!("aria-label=\"{title}\"")), "{title} is not in the page");
        for contender in ["anello io_uring", "tokio"] {
            let mut series = chart["series"].as_array().unwrap().iter();
            let series = series.find(|series| series["name"] == contender).unwrap();
            let points = series["y"].as_array().unwrap();
            assert!(points.len() == 2 && points.iter().all(|point| point.is_f64()), "{series}");
        }
    }
    assert!(names.iter().all(|name| !name.contains("requests-s")), "the rate is given: {names:?}");
}

/// Returns the data of all charts on a page.
fn charts(page: &str) -> Vec<serde_json::Value> {
    let data = page.split("</figcaption><script type=\"application/json\">").skip(1);
    data.map(|rest| serde_json::from_str(rest.split("</script>").next().unwrap()).unwrap()).collect()
}
