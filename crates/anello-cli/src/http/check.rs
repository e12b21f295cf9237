//! `--check`: validates everything that startup needs, without binding, writing or serving.
//!
//! Startup stops at the first problem; the check reports all of them.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::ExitCode;

use anello::{DriverKind, Runtime};
use anello_http::files::options::{FileOptions, InvalidOption};
use anello_http::files::{Files, FilesError};
use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::config::Configuration;
use super::descriptors::Descriptors;
use super::flags::Arguments;
use super::identity::Identity;
use super::sandbox::{Sandbox, SandboxMode};
use super::sockets::DEFAULT_ADDRESS;
use crate::common::address::Address;
use crate::common::cores::Cores;
use crate::common::{limits, output};

/// Runs all checks. Prints the problems (exit code 1), or the non-default settings (exit code 0).
pub fn run(arguments: &Arguments, configuration: &Configuration) -> io::Result<ExitCode> {
    let mut check = Check { configuration, problems: configuration.problems.clone() };
    match arguments.identity.resolve() {
        Ok(None) => check.paths(arguments)?,
        Ok(Some(identity)) => check.paths_as_user(&identity, arguments)?,
        Err(error) => {
            check.problems.push(error.to_string());
            check.paths(arguments)?;
        }
    }
    check.cores(arguments);
    check.descriptors(arguments);
    if check.problems.is_empty() {
        output::show(&success_report(arguments, configuration))?;
        return Ok(ExitCode::SUCCESS);
    }
    check.problems.iter().for_each(|problem| output::print_stderr(format_args!("anello: {problem}")));
    Ok(ExitCode::from(1))
}

/// Returns the non-default settings in the syntax of a configuration file.
fn success_report(arguments: &Arguments, configuration: &Configuration) -> String {
    let file = arguments.config.as_ref().map(|path| format!(" with {}", path.display())).unwrap_or_default();
    let settings = configuration.settings.iter().map(|setting| format!("{setting}\n")).collect::<String>();
    format!("# anello http: configuration OK{file}. Non-default settings:\n{settings}")
}

struct Check<'a> {
    configuration: &'a Configuration,
    problems: Vec<String>,
}

impl Check<'_> {
    fn add_problem(&mut self, name: &str, error: impl std::fmt::Display) {
        self.problems.push(format!("{}: {error}", self.configuration.location(name)));
    }

    fn option(&mut self, invalid: &InvalidOption) {
        self.problems.push(self.configuration.describe_invalid(invalid));
    }

    /// Checks the paths with the permissions of the user that the server switches to, in a thread that switches to this
    /// user and then exits.
    fn paths_as_user(&mut self, identity: &Identity, arguments: &Arguments) -> io::Result<()> {
        match identity.run_as(|| self.paths(arguments)) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.problems.push(error.to_string());
                self.paths(arguments)
            }
            result => result,
        }
    }

    /// Runs the checks that depend on the file system, the driver and the sandbox.
    fn paths(&mut self, arguments: &Arguments) -> io::Result<()> {
        self.addresses(arguments);
        self.files(arguments)?;
        if let Err(error) = arguments.tls.read() {
            self.add_problem("tls-cert", &error);
        }
        if let Some(path) = arguments.observer.access_log_file()
            && let Err(error) = check_appendable(path)
        {
            self.add_problem("access-log", format_args!("{}: {error}", path.display()));
        }
        self.sandbox(arguments);
        Ok(())
    }

    fn addresses(&mut self, arguments: &Arguments) {
        let address = arguments.addr.clone().or_else(|| DEFAULT_ADDRESS.parse().ok());
        if let (Some(Address::Internet(address)), Some(metrics)) = (address, arguments.observer.metrics_addr)
            && address == metrics
            && metrics.port() != 0
        {
            let cause = "is already the address of the file server (choose another)";
            self.add_problem("metrics-addr", format_args!("{metrics} {cause}"));
        }
        if let Some(path) = arguments.socket_path()
            && let Err(error) = check_can_create(parent(path)).and_then(|()| check_socket_path(path))
        {
            self.add_problem("addr", format_args!("{}: {error}", path.display()));
        }
        if let Some(path) = &arguments.handover
            && let Err(error) = check_can_create(parent(path))
        {
            self.add_problem("handover", format_args!("{}: {error}", path.display()));
        }
    }

    fn cores(&mut self, arguments: &Arguments) {
        if let Some(error) = arguments.cores.as_ref().and_then(Cores::local_problem) {
            self.add_problem("cores", error);
        }
    }

    /// Checks that the open-file limit is high enough for the configured connections.
    fn descriptors(&mut self, arguments: &Arguments) {
        limits::raise_open_files();
        let descriptors =
            Descriptors::of_process(arguments.workers(), arguments.observer.metrics_addr.is_some());
        if let Some(error) = descriptors.problem(arguments.connections.max_connections()) {
            self.add_problem("max-connections", error);
        }
    }

    /// Checks the sandbox if `--sandbox on` requires it. Skipped if the document root is unusable, which is reported
    /// elsewhere.
    fn sandbox(&mut self, arguments: &Arguments) {
        if arguments.sandbox == SandboxMode::On
            && let Ok(paths) = arguments.allowed_paths(arguments.socket_path())
            && let Err(error) = Sandbox::probe(&paths)
        {
            self.add_problem("sandbox", error);
        }
    }

    /// Checks the driver and, using it, the document root and the files named by options.
    fn files(&mut self, arguments: &Arguments) -> io::Result<()> {
        let mut options = arguments.files.options(1);
        let invalid = options.validation_errors();
        invalid.iter().for_each(|invalid| self.option(invalid));
        if !invalid.is_empty() {
            // The document root and the files of valid options can still be checked.
            let is_valid = |name: &str| !invalid.iter().any(|invalid| invalid.option() == name);
            options = FileOptions {
                symlinks: options.symlinks,
                not_found_file: options.not_found_file.filter(|_| is_valid("not-found-file")),
                spa_fallback_file: options.spa_fallback_file.filter(|_| is_valid("spa-fallback")),
                ..FileOptions::default()
            };
        }
        let runtime = arguments.driver.builder().build().or_else(|error| {
            self.add_problem("driver", error);
            Runtime::builder().driver(DriverKind::Epoll).driver_from_environment(false).build()
        })?;
        arguments.driver.report_ignored(runtime.driver().name);
        match Files::open(&arguments.directory, options) {
            Ok(files) => {
                let unusable = runtime.block_on(files.invalid_option_files());
                unusable.iter().for_each(|unusable| self.option(unusable));
                if let Err(error) = check_searchable(&arguments.directory) {
                    self.add_problem("directory", error);
                }
            }
            Err(FilesError::Option(invalid)) => self.option(&invalid),
            Err(error) => {
                self.add_problem("directory", format_args!("{}: {error}", arguments.directory.display()))
            }
        }
        Ok(())
    }
}

/// Checks that a log file can be appended to, or created if it does not exist. Does not create or open any file.
fn check_appendable(path: &Path) -> Result<(), String> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err("is a directory (name a file in it)".to_owned()),
        Ok(_) => check_access(path, Access::WRITE_OK)
            .map_err(|error| format!("{error} (grant this user write permission)")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => check_can_create(parent(path)),
        Err(error) => Err(format!("{error} (choose an accessible file)")),
    }
}

/// Checks that this user may access files in a directory. Opening the directory itself does not require that
/// permission.
pub fn check_searchable(directory: &Path) -> Result<(), String> {
    check_access(directory, Access::EXEC_OK).map_err(|error| {
        format!("{}: {error} (grant this user search permission, e.g. chmod o+x)", directory.display())
    })
}

/// Checks that this user may remove a file, which depends on the permissions of its directory.
pub fn check_can_remove(file: &Path) -> Result<(), String> {
    check_can_create(parent(file))
}

fn check_can_create(directory: &Path) -> Result<(), String> {
    let with_path = |error: &dyn std::fmt::Display| format!("{}: {error}", directory.display());
    match fs::metadata(directory) {
        Ok(metadata) if !metadata.is_dir() => Err(with_path(&"not a directory (choose a directory)")),
        Ok(_) => check_access(directory, Access::WRITE_OK | Access::EXEC_OK).map_err(|error| {
            with_path(&format_args!("{error} (grant this user permission to create files there)"))
        }),
        Err(error) => Err(with_path(&format_args!("{error} (create this directory first)"))),
    }
}

/// Checks that the path is free or a socket. A stale socket is replaced at startup; a live socket belongs to a running
/// server, which must be stopped first or hand over its sockets.
fn check_socket_path(path: &Path) -> Result<(), String> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err("exists and is not a socket (choose another path)".to_owned())
        }
        _ => Ok(()),
    }
}

/// Checks the permissions of the effective user (`faccessat2(2)`).
fn check_access(path: &Path, access: Access) -> rustix::io::Result<()> {
    accessat(CWD, path, access, AtFlags::EACCESS)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}
