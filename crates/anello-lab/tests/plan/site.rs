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
    assert_eq!(Target::ALL.map(|target| target.bytes()), [13, 6144, 307_200, 10_485_760, 13]);
    let sizes = ["13 bytes", "6 KiB", "300 KiB", "10 MiB", "13 bytes"];
    assert_eq!(Target::ALL.map(Target::size_in_words), sizes);
    let text = String::from_utf8(Target::Page.body().to_vec()).unwrap();
    assert!(text.starts_with("<!DOCTYPE html>") && text.ends_with("</html>\n"), "{text}");
    assert_eq!(Target::Large.body()[..8], [205, 244, 27, 238, 255, 89, 26, 220], "bodies are reproducible");
    assert_ne!(Target::Large.body()[..64], Target::Huge.body()[..64]);
}

#[test]
fn file_servers_support_all_targets_and_handlers_only_fixed() {
    let sorted = [Target::Hello, Target::Fixed, Target::Page, Target::Large, Target::Huge];
    for all in [&[][..], &[Serves::Files], &[Serves::Files, Serves::Fixed]] {
        assert_eq!(SupportedTargets::of(all).targets(), sorted, "{all:?}");
    }
    assert_eq!(SupportedTargets::of(&[Serves::Fixed]).targets(), [Target::Fixed]);
    assert_eq!(SupportedTargets::of(&[Serves::Files]), SupportedTargets { files: true, fixed: false });
}

#[test]
fn targets_are_serialized_by_name() {
    for target in Target::ALL {
        let json = serde_json::to_string(&target).unwrap();
        assert_eq!(json, format!("\"{target}\""));
        assert_eq!(serde_json::from_str::<Target>(&json).unwrap(), target);
    }
    assert_eq!(Target::Fixed.path(), "/fixed");
}
