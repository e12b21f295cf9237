//! The helper of the examples in the documentation.

/// Runs the body of an asynchronous example on a new runtime. Examples call it in hidden lines. The `?` operator can be
/// used in the body with all errors.
///
/// # Panics
/// Panics if the body returns an error, or no runtime can be built.
#[doc(hidden)]
#[macro_export]
macro_rules! example {
    ($($body:tt)*) => {
        let result = $crate::Runtime::new().expect("a runtime").block_on(async {
            $($body)*
            ;
            Ok::<(), Box<dyn std::error::Error>>(())
        });
        result.expect("an example without errors");
    };
}
