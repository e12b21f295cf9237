//! Tests for health responses.

use anello_http::observe::health::{Health, HealthFormat, HealthResponse, HealthState};

#[test]
fn state_advances_and_never_moves_backwards() {
    let health = Health::new();
    let health_clone = health.clone();
    assert_eq!(health.state(), HealthState::Starting);
    assert!(health.set_ready() && !health.set_ready());
    assert_eq!(health_clone.state(), HealthState::Ready);
    assert!(health.set_draining() && !health.set_draining() && !health.set_ready());
    assert_eq!(health_clone.state(), HealthState::Draining);
}

#[test]
fn starting_server_can_drain_directly() {
    let health = Health::new();
    assert!(health.set_draining() && !health.set_ready());
    assert_eq!(health.state(), HealthState::Draining);
}

#[test]
fn response_contains_state_in_both_formats() {
    let health = Health::new();
    let response = |format| health.response(format);
    let json = |response: HealthResponse| serde_json::from_slice::<serde_json::Value>(response.body).unwrap();
    assert_eq!(
        (response(HealthFormat::Text).status, response(HealthFormat::Text).body),
        (503, &b"starting\n"[..])
    );
    assert_eq!(json(response(HealthFormat::Json))["status"], "starting");
    health.set_ready();
    assert_eq!(
        (response(HealthFormat::Text).status, response(HealthFormat::Text).body),
        (200, &b"ready\n"[..])
    );
    assert_eq!(json(response(HealthFormat::Json))["status"], "ready");
    assert_eq!(response(HealthFormat::Json).content_type, "application/json");
    health.set_draining();
    assert_eq!(
        (response(HealthFormat::Text).status, response(HealthFormat::Text).body),
        (503, &b"draining\n"[..])
    );
    assert_eq!(json(response(HealthFormat::Json))["status"], "draining");
    assert_eq!(response(HealthFormat::Json).status, 503);
}

#[test]
fn json_format_requires_accept_of_application_json() {
    for json in [&b"application/json"[..], b"text/html, Application/JSON;q=0.9", b" application/json ;q=1"] {
        assert_eq!(HealthFormat::from_accept(Some(json)), HealthFormat::Json);
    }
    for text in [&b"*/*"[..], b"text/plain", b"application/jsonp", b"", b",;,", b"\xff"] {
        assert_eq!(HealthFormat::from_accept(Some(text)), HealthFormat::Text);
    }
    assert_eq!(HealthFormat::from_accept(None), HealthFormat::Text);
}
