//! Tests for the resources that HTTP servers serve.

use anello_lab::Target;
use anello_lab::peers::Serves;
use anello_lab::site::SupportedTargets;

#[test]
fn bodies_have_declared_sizes() {
    for target in Target::ALL {
        assert_eq!(target.body().len(), target.bytes(), "{target}");
        assert_eq!(target.is_large(), target.bytes() > 300_000, "{target}");
    }
    let bytes = [13, 6144, 307_200, 10_485_760, 13, 27, 1024, 102_400];
    assert_eq!(Target::ALL.map(|target| target.bytes()), bytes);
    let sizes = ["13 bytes", "6 KiB", "300 KiB", "10 MiB", "13 bytes", "27 bytes", "1 KiB", "100 KiB"];
    assert_eq!(Target::ALL.map(Target::size_in_words), sizes);
    let text = String::from_utf8(Target::Page.body().to_vec()).unwrap();
    assert!(text.starts_with("<!DOCTYPE html>") && text.ends_with("</html>\n"), "{text}");
    assert_eq!(Target::Large.body()[..8], [205, 244, 27, 238, 255, 89, 26, 220], "bodies are reproducible");
    assert_ne!(Target::Large.body()[..64], Target::Huge.body()[..64]);
}

#[test]
fn file_servers_support_all_files_and_handlers_only_their_targets() {
    let sorted = [Target::Hello, Target::Fixed, Target::Page, Target::Large, Target::Huge];
    for files in [&[Serves::Files][..], &[Serves::Files, Serves::Fixed]] {
        assert_eq!(SupportedTargets::of(files).targets(), sorted, "{files:?}");
    }
    assert_eq!(SupportedTargets::of(&[]).targets().len(), Target::ALL.len());
    let routes = [Target::Json, Target::Echo, Target::Stream];
    assert_eq!(SupportedTargets::of(&[Serves::Routes]).targets(), routes);
    assert!(routes.into_iter().all(Target::is_route) && !sorted.into_iter().any(Target::is_route));
    assert_eq!(SupportedTargets::of(&[Serves::Fixed]).targets(), [Target::Fixed]);
}

#[test]
fn only_echo_has_request_body() {
    for target in Target::ALL {
        let expected = (target == Target::Echo).then(|| target.body());
        assert_eq!(target.request_body(), expected, "{target}");
    }
}

#[test]
fn targets_are_serialized_by_name() {
    for target in Target::ALL {
        let json = serde_json::to_string(&target).unwrap();
        assert_eq!(json, format!("\"{target}\""));
        assert_eq!(serde_json::from_str::<Target>(&json).unwrap(), target);
        assert_eq!(Target::parse(target.name()), Ok(target));
    }
    assert!(Target::parse("/other").unwrap_err().ends_with("/json, /echo, /stream"));
    assert_eq!(Target::Fixed.path(), "/fixed");
}
