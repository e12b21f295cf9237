//! Command-line arguments of `anello doctor`.

/// Report the capabilities of this host, the selected driver and the reason for it, and recommended changes.
///
/// Each io_uring feature is probed on a separate ring. The command changes nothing. It exits with 1 if no driver works.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print facts, checks and advice as JSON for other programs.
    #[arg(long)]
    pub json: bool,
}
