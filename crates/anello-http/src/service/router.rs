//! Routers of axum, built once before they are served.

use std::any::type_name;
#[cfg(feature = "axum")]
use std::{any::Any, mem::take};

#[cfg(feature = "axum")]
use axum::{Router, routing::MethodRouter};

/// Builds a router, as `axum::serve` does: otherwise, axum would apply the layers of a route again for each request.
/// Returns any other service unchanged. Panics if the service is a router that cannot be built.
pub(super) fn build<S: 'static>(service: S) -> S {
    #[cfg(feature = "axum")]
    let (service, is_built) = {
        let mut service = service;
        let is_built = replace(&mut service, |router: Router| router.with_state(()))
            || replace(&mut service, |router: MethodRouter| router.with_state(()));
        (service, is_built)
    };
    #[cfg(not(feature = "axum"))]
    let is_built = false;
    if !is_built {
        assert_no_router(type_name::<S>(), cfg!(feature = "axum"));
    }
    service
}

/// Replaces the service if it is a `T`.
#[cfg(feature = "axum")]
fn replace<T: Default + 'static>(service: &mut dyn Any, replacement: impl FnOnce(T) -> T) -> bool {
    let router = service.downcast_mut::<T>();
    router.map(|router| *router = replacement(take(router))).is_some()
}

/// Panics if this is the type name of a router.
fn assert_no_router(name: &str, has_feature: bool) {
    let problem = match (name.split('<').next(), has_feature) {
        (Some("axum::routing::RouterIntoService"), _) => {
            "`Router::into_service` hides the router (pass the router itself)"
        }
        (Some("axum::routing::Router" | "axum::routing::method_routing::MethodRouter"), false) => {
            "the feature `axum` of anello-http is off (enable it in Cargo.toml)"
        }
        (Some("axum::routing::Router"), true) => "it is of another version of axum (use axum 0.8)",
        (Some("axum::routing::method_routing::MethodRouter"), true) => {
            "its error type is not `Infallible` (call `MethodRouter::handle_error`), or it is of another version of axum \
             (use axum 0.8)"
        }
        _ => return,
    };
    panic!("cannot serve a router of axum: {problem}");
}

#[cfg(test)]
mod tests {
    use std::io::Error;
    use std::panic::catch_unwind;

    use axum::Router;
    use axum::body::Body;
    use axum::routing::{MethodRouter, Route};
    use tower::util::ServiceFn;

    use super::*;

    fn assert_rejected(name: &str, has_feature: bool, expected: &str) {
        let panic = catch_unwind(|| assert_no_router(name, has_feature)).expect_err("a router is rejected");
        let message = panic.downcast::<String>().expect("a message");
        assert!(message.contains(expected), "{name}: {message}");
    }

    #[test]
    fn routers_are_rejected_without_feature() {
        for name in
            [type_name::<Router>(), type_name::<MethodRouter>(), type_name::<MethodRouter<(), Error>>()]
        {
            assert_rejected(name, false, "the feature `axum` of anello-http is off");
        }
    }

    /// The name of a type does not contain the version of its crate.
    #[test]
    fn routers_of_other_types_are_rejected() {
        assert_rejected(type_name::<Router>(), true, "another version of axum");
        assert_rejected(type_name::<MethodRouter>(), true, "another version of axum");
        assert_rejected(type_name::<MethodRouter<(), Error>>(), true, "call `MethodRouter::handle_error`");
        let service = Router::<()>::new().into_service::<Body>();
        for has_feature in [false, true] {
            assert_rejected(std::any::type_name_of_val(&service), has_feature, "pass the router itself");
        }
    }

    #[test]
    #[cfg(feature = "axum")]
    #[should_panic(expected = "call `MethodRouter::handle_error`")]
    fn router_that_cannot_be_built_is_rejected() {
        drop(build(MethodRouter::<(), Error>::new()));
    }

    #[test]
    fn other_services_are_not_rejected() {
        for has_feature in [false, true] {
            assert_no_router(type_name::<Route>(), has_feature);
            assert_no_router(type_name::<ServiceFn<fn()>>(), has_feature);
            assert_no_router(type_name::<Option<Router>>(), has_feature);
        }
    }
}
