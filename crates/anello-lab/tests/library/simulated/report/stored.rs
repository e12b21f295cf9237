//! Tests for stored results in compressed files, in uncompressed files and within pages.

use std::path::Path;

use anello_lab::analysis::backfill;
use anello_lab::raw::{read_runs, runs_of};
use anello_lab::{LabResult, findings, render_html, render_markdown, render_plots, render_table, write_json};

use super::{check_markup, sample};

/// Returns a recorded run from this repository.
fn recorded(name: &str) -> LabResult {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/lab").join(name);
    let mut runs = read_runs(&path).unwrap();
    let mut run = runs.pop().unwrap();
    assert!(runs.is_empty());
    backfill(&mut run);
    run
}

#[test]
fn page_and_tables_of_recorded_run_are_regenerated() {
    let result = recorded("idle.json.gz");
    let conclusion = findings::conclusion(&result);
    assert!(conclusion.split_whitespace().count() <= 20 && conclusion.contains(" memory "), "{conclusion}");
    let page = render_html(&result);
    check_markup(&page).unwrap();
    assert!(page.contains(&format!("<p class=\"headline\">{conclusion}</p>")));
    assert_eq!(runs_of(&page).unwrap(), std::slice::from_ref(&result));
    let (table, markdown) = (render_table(&result), render_markdown(std::slice::from_ref(&result)));
    assert!(table.starts_with(&conclusion) && markdown.contains(&conclusion), "{table}");
    for contender in &result.contenders {
        for text in [&table, &markdown] {
            assert!(text.contains(&contender.name), "{} is not in {text}", contender.name);
        }
    }
    for (name, svg) in render_plots(&result) {
        check_markup(&svg).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

#[test]
fn conclusions_of_recorded_runs_are_short() {
    for name in ["chen622", "files", "quick", "tls"] {
        let conclusion = findings::conclusion(&recorded(&format!("{name}.json.gz")));
        assert!((5..=20).contains(&conclusion.split_whitespace().count()), "{name}: {conclusion}");
    }
}

#[test]
fn results_are_compressed_by_extension() {
    let (result, directory) = (sample(), tempfile::tempdir().unwrap());
    let [plain, compressed] = ["run.json", "run.json.gz"].map(|name| directory.path().join(name));
    write_json(&result, &plain).unwrap();
    write_json(&result, &compressed).unwrap();
    let size = |path: &Path| std::fs::metadata(path).unwrap().len();
    assert!(size(&compressed) * 3 < size(&plain), "{} of {} bytes", size(&compressed), size(&plain));
    for path in [&plain, &compressed] {
        assert_eq!(read_runs(path).unwrap(), std::slice::from_ref(&result), "{}", path.display());
        assert_eq!(anello_lab::checkpoint::load(path).unwrap(), result);
    }
    std::fs::write(&compressed, &std::fs::read(&compressed).unwrap()[..1000]).unwrap();
    let error = read_runs(&compressed).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot read {}: ", compressed.display())), "{error}");
}

#[test]
fn invalid_files_are_rejected_with_cause() {
    let page = |data: &str| format!("<!doctype html><script type=\"application/gzip\" id=\"raw0\">{data}");
    // The JSON text {}, compressed and encoded in base64.
    let empty_object = page("H4sIAAAAAAACA6uuBQBDv6ajAgAAAA==</script></html>");
    for (text, cause) in [
        ("", "not the JSON of a run"),
        ("<!doctype html><p>hello", "no raw data"),
        (&page("!</script></html>"), "damaged"),
        (&page("AAAA</script></html>"), "damaged"),
        (&page("AAAA</script>"), "truncated"),
        (&page("AAAA</html>"), "truncated"),
        (&page("AAAA"), "truncated"),
        (&empty_object, "not a lab result"),
    ] {
        let error = runs_of(text).unwrap_err();
        assert!(error.contains(cause), "{text}: {error}");
    }
}
