//! Routers of axum, built once before they are served.

#[cfg(any(test, not(feature = "axum")))]
use std::any::type_name;
#[cfg(feature = "axum")]
use std::{any::Any, mem::take};

#[cfg(feature = "axum")]
use axum::{Router, routing::MethodRouter};

/// Builds a router, as `axum::serve` does: otherwise, axum would apply the layers of a route again for each request.
/// Returns any other service unchanged.
#[cfg(feature = "axum")]
pub(super) fn build<S: 'static>(mut service: S) -> S {
    replace(&mut service, |router: Router| router.with_state(()));
    replace(&mut service, |router: MethodRouter| router.with_state(()));
    service
}

/// Replaces the service if it is a `T`.
#[cfg(feature = "axum")]
fn replace<T: Default + 'static>(service: &mut dyn Any, replacement: impl FnOnce(T) -> T) {
    if let Some(service) = service.downcast_mut::<T>() {
        *service = replacement(take(service));
    }
}

/// Panics if the service is a router, because it cannot be built without the feature.
#[cfg(not(feature = "axum"))]
pub(super) fn build<S: 'static>(service: S) -> S {
    assert_no_router::<S>();
    service
}

#[cfg(any(test, not(feature = "axum")))]
fn assert_no_router<S>() {
    const ROUTERS: [&str; 2] = ["axum::routing::Router", "axum::routing::method_routing::MethodRouter"];
    let name = type_name::<S>();
    assert!(
        !ROUTERS.iter().any(|router| name.starts_with(router)),
        "cannot serve a router of axum: the feature `axum` of anello-http is off (enable it in Cargo.toml)"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "the feature `axum` of anello-http is off")]
    fn routers_are_rejected_without_feature() {
        assert_no_router::<axum::Router>();
    }

    #[test]
    #[should_panic(expected = "the feature `axum` of anello-http is off")]
    fn method_routers_are_rejected_without_feature() {
        assert_no_router::<axum::routing::MethodRouter>();
    }

    #[test]
    fn other_services_need_no_feature() {
        assert_no_router::<axum::routing::Route>();
        assert_no_router::<tower::util::ServiceFn<fn()>>();
    }
}
