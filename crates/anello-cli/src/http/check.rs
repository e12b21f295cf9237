//! `--check`: validates everything that startup needs, without binding sockets, writing files or serving requests.
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
use super::identity::Owner;
use super::sandbox::{Sandbox, SandboxMode};
use crate::common::address::Address;
use crate::common::{output, process};

/// Runs all checks. Prints the problems (exit code 1), or the non-default settings (exit code 0).
pub fn run(arguments: &Arguments, configuration: &Configuration) -> io::Result<ExitCode> {
    let mut check = Check { configuration, problems: configuration.problems.clone() };
    let identity = arguments.identity.resolve().unwrap_or_else(|error| {
        check.problems.push(error.to_string());
        None
    });
    let checked = match &identity {
        // Runs in a temporary thread, because the switch to the configured user cannot be undone.
        Some(identity) => identity.run_as(|| check.paths(arguments)),
        None => check.paths(arguments),
    };
    match checked {
        Err(error) if identity.is_some() && error.kind() == io::ErrorKind::PermissionDenied => {
            check.problems.push(error.to_string());
            check.paths(arguments)?;
        }
        result => result?,
    }
    arguments.problems().iter().for_each(|problem| check.add_problem(problem.name, &problem.reason));
    process::raise_open_files();
    let has_metrics = arguments.observer.admin.metrics_addr.is_some();
    let descriptors = Descriptors::of_process(arguments.worker_count(), has_metrics);
    if let Some(error) = descriptors.problem(arguments.connections.max_connections()) {
        check.add_problem("max-connections", error);
    }
    if !check.problems.is_empty() {
        check.problems.iter().for_each(|problem| output::print_stderr(format_args!("anello: {problem}")));
        return Ok(ExitCode::FAILURE);
    }
    let file = arguments.config.as_ref().map(|path| format!(" with {}", path.display())).unwrap_or_default();
    let settings = configuration.settings.iter().map(|setting| format!("{setting}\n")).collect::<String>();
    output::show(&format!("# anello http: configuration OK{file}. Non-default settings:\n{settings}"))
        .map(|()| ExitCode::SUCCESS)
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
        // Skipped if the document root is unusable, which is reported elsewhere.
        if arguments.sandbox == SandboxMode::On
            && let Ok(paths) = arguments.allowed_paths(arguments.socket_paths())
            && let Err(error) = Sandbox::probe(&paths)
        {
            self.add_problem("sandbox", error);
        }
        Ok(())
    }

    fn addresses(&mut self, arguments: &Arguments) {
        for address in arguments.addresses().into_iter().flatten() {
            let resolved = address.resolve().unwrap_or_else(|error| {
                self.add_problem("addr", error);
                Vec::new()
            });
            if let Some(metrics) = arguments.observer.admin.metrics_addr
                && metrics.port() != 0
                && resolved
                    .iter()
                    .any(|address| matches!(address, Address::Internet(address) if *address == metrics))
            {
                let cause = "is already the address of the file server (choose another)";
                self.add_problem("metrics-addr", format_args!("{metrics} {cause}"));
            }
        }
        for path in arguments.socket_paths() {
            if let Err(error) = check_can_create(path).and_then(|()| check_socket_path(path)) {
                self.add_problem("addr", format_args!("{}: {error}", path.display()));
            }
        }
        if let Some(owner) = &arguments.socket_owner
            && let Err(error) = Owner::find(owner)
        {
            self.problems.push(error.to_string());
        }
        if let Some(path) = &arguments.handover
            && let Err(error) = check_can_create(path)
        {
            self.add_problem("handover", format_args!("{}: {error}", path.display()));
        }
    }

    /// Checks the driver, and uses it to check the document root and the files named by options.
    fn files(&mut self, arguments: &Arguments) -> io::Result<()> {
        let mut options = arguments.files.options(1);
        let invalid = options.validation_errors();
        invalid.iter().for_each(|invalid| self.option(invalid));
        if !invalid.is_empty() {
            // The document root and the files of valid options can still be checked.
            let is_valid = |name: &str| !invalid.iter().any(|invalid| invalid.option() == name);
            let not_found_file = options.not_found_file.filter(|_| is_valid("not-found-file"));
            let spa_fallback_file = options.spa_fallback_file.filter(|_| is_valid("spa-fallback"));
            options = FileOptions::default()
                .symlinks(options.symlinks)
                .not_found_file(not_found_file)
                .spa_fallback_file(spa_fallback_file);
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
        Err(error) if error.kind() == io::ErrorKind::NotFound => check_can_create(path),
        Err(error) => Err(format!("{error} (choose an accessible file)")),
    }
}

/// Checks that this user may access files in a directory. Opening the directory does not require this permission.
pub fn check_searchable(directory: &Path) -> Result<(), String> {
    check_access(directory, Access::EXEC_OK).map_err(|error| {
        format!("{}: {error} (grant this user search permission, e.g. chmod o+x)", directory.display())
    })
}

/// Checks that this user may create and remove a file, which depends on the permissions of its directory.
pub fn check_can_create(file: &Path) -> Result<(), String> {
    let directory = match file.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let result = match fs::metadata(directory) {
        Ok(metadata) if !metadata.is_dir() => Err("not a directory (choose a directory)".to_owned()),
        Ok(_) => check_access(directory, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|error| format!("{error} (grant this user permission to create files there)")),
        Err(error) => Err(format!("{error} (create this directory first)")),
    };
    result.map_err(|error| format!("{}: {error}", directory.display()))
}

/// Checks that the path does not exist or is a socket. An existing socket is either stale or belongs to a running
/// server that will be stopped or replaced.
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
