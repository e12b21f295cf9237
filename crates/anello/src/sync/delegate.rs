//! Macro that implements methods by calling the method of the same name of the inner value.

/// Implements methods of a [`Coop`](crate::task::Coop). The word before `fn` is
///
/// - `direct`: calls the inner method,
/// - `async`: calls the inner asynchronous method and returns a future that consumes budget,
/// - `blocking`: calls the inner method, and panics if a runtime is running on this thread.
macro_rules! delegate {
    (impl [$($generics:tt)*] $type:ty { $(
        $(#[$meta:meta])* $kind:ident fn $name:ident($($arguments:tt)*) $(-> $output:ty)?;
    )* }) => {
        impl<$($generics)*> $type { $(
            $crate::sync::delegate::delegate! {
                @method [$(#[$meta])*] $kind $name($($arguments)*) [$($output)?]
            }
        )* }
    };
    (@method [$($meta:tt)*] $kind:ident $name:ident(&mut $self:ident $(, $argument:ident: $type:ty)*) $output:tt) => {
        $crate::sync::delegate::delegate! {
            @define [$($meta)*] $kind $name [&mut $self $(, $argument: $type)*] [$self.0] [$($argument),*] $output
        }
    };
    (@method [$($meta:tt)*] $kind:ident $name:ident(&$self:ident $(, $argument:ident: $type:ty)*) $output:tt) => {
        $crate::sync::delegate::delegate! {
            @define [$($meta)*] $kind $name [&$self $(, $argument: $type)*] [$self.0] [$($argument),*] $output
        }
    };
    // An `Arc<Self>` is converted to an `Arc` of the inner type.
    (@method [$($meta:tt)*] $kind:ident $name:ident(
        $self:ident: Arc<Self> $(, $argument:ident: $type:ty)*
    ) $output:tt) => {
        $crate::sync::delegate::delegate! {
            @define [$($meta)*] $kind $name [$self: std::sync::Arc<Self> $(, $argument: $type)*]
            [$self.into_inner_arc()] [$($argument),*] $output
        }
    };
    (@method [$($meta:tt)*] $kind:ident $name:ident($self:ident $(, $argument:ident: $type:ty)*) $output:tt) => {
        $crate::sync::delegate::delegate! {
            @define [$($meta)*] $kind $name [$self $(, $argument: $type)*] [$self.0] [$($argument),*] $output
        }
    };
    (@define [$($meta:tt)*] direct $name:ident [$($parameters:tt)*] [$($inner:tt)*] [$($argument:ident),*] [
        $($output:ty)?
    ]) => {
        $($meta)*
        #[track_caller]
        pub fn $name($($parameters)*) $(-> $output)? {
            $($inner)*.$name($($argument),*)
        }
    };
    (@define [$($meta:tt)*] blocking $name:ident [$($parameters:tt)*] [$($inner:tt)*] [$($argument:ident),*] [
        $($output:ty)?
    ]) => {
        $($meta)*
        ///
        /// # Panics
        /// Panics if a runtime is running on this thread.
        #[track_caller]
        pub fn $name($($parameters)*) $(-> $output)? {
            $crate::executor::assert_may_block(stringify!($name));
            $($inner)*.$name($($argument),*)
        }
    };
    (@define [$($meta:tt)*] async $name:ident [$($parameters:tt)*] [$($inner:tt)*] [$($argument:ident),*] []) => {
        $crate::sync::delegate::delegate! {
            @define [$($meta)*] async $name [$($parameters)*] [$($inner)*] [$($argument),*] [()]
        }
    };
    (@define [$($meta:tt)*] async $name:ident [$($parameters:tt)*] [$($inner:tt)*] [$($argument:ident),*] [
        $output:ty
    ]) => {
        $($meta)*
        pub fn $name($($parameters)*) -> impl Future<Output = $output> {
            $crate::executor::cooperative($($inner)*.$name($($argument),*))
        }
    };
}

pub(super) use delegate;
