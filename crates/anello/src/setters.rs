//! Setters of options structs.

/// Adds one setter per field, because a `#[non_exhaustive]` struct cannot be constructed with struct update syntax.
macro_rules! setters {
    ($options:ident { $($field:ident: $type:ty),+ $(,)? }) => {
        impl $options {$(
            #[doc = concat!(
                "Sets [`", stringify!($field), "`](#structfield.", stringify!($field), ") and returns the options."
            )]
            #[must_use]
            pub fn $field(mut self, value: $type) -> Self {
                self.$field = value;
                self
            }
        )+}
    };
}
