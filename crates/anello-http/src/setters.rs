//! Setters of options structs.

/// Adds one setter per field, because a `#[non_exhaustive]` struct cannot be constructed with struct update syntax. The
/// value after a field is used in the example of its setter.
macro_rules! setters {
    ($options:ident { $($field:ident: $type:ty = $example:expr),+ $(,)? }) => {
        impl $options {$(
            #[doc = concat!(
                "Sets [`", stringify!($field), "`](#structfield.", stringify!($field), ") and returns the options.\n\n",
                "```\n",
                "# use std::time::Duration;\n",
                "# use std::collections::BTreeMap;\n",
                "# use anello_http::files::{cache_control::*, headers::*, negotiate::*, options::*, path::*};\n",
                "# use anello_http::{h1::*, observe::{access_log::*, metrics::*}, server::*};\n",
                "let options = ", stringify!($options), "::default().",
                stringify!($field), "(", stringify!($example), ");\n",
                "assert_eq!(options.", stringify!($field), ", ", stringify!($example), ");\n",
                "```"
            )]
            #[must_use]
            pub fn $field(mut self, value: $type) -> Self {
                self.$field = value;
                self
            }
        )+}
    };
}
