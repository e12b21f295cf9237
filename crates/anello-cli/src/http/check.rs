//! `--check`: everything that a start would need is looked at, nothing is bound, written or served.
//!
//! Unlike a start, which ends at the first thing that is wrong, it goes on and tells them all.

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
use super::identity::Identity;
use super::sandbox_setup::ServerPaths;
use super::sockets::DEFAULT_ADDRESS;
use super::{Arguments, usable_cores};
use crate::address::Address;
use crate::cores::Cores;
use crate::sandbox::{Sandbox, SandboxMode};
use crate::{limits, output};

/// Looks at everything and tells what is wrong (exit code 1), or that all is well and what is not as by default.
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

/// A file that would set the same.
fn success_report(arguments: &Arguments, configuration: &Configuration) -> String {
    let with = arguments.config.as_ref().map(|path| format!(" with {}", path.display())).unwrap_or_default();
    let mut text = format!("# anello http: all is well{with}. What is not as by default:\n");
    for setting in &configuration.settings {
        text.push_str(setting);
        text.push('\n');
    }
    text
}

struct Check<'a> {
    configuration: &'a Configuration,
    problems: Vec<String>,
}

impl Check<'_> {
    fn add_problem(&mut self, name: &str, why: impl std::fmt::Display) {
        self.problems.push(format!("{}: {why}", self.configuration.location(name)));
    }

    fn option(&mut self, invalid: &InvalidOption) {
        self.problems.push(self.configuration.describe_invalid(invalid));
    }

    /// What has to be done as the user that the process changes to: by a thread that has changed to it, and ends then.
    fn paths_as_user(&mut self, identity: &Identity, arguments: &Arguments) -> io::Result<()> {
        match identity.run_as(|| self.paths(arguments)) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.problems.push(error.to_string());
                self.paths(arguments)
            }
            checked => checked,
        }
    }

    /// What the file system, the driver and the sandbox say.
    fn paths(&mut self, arguments: &Arguments) -> io::Result<()> {
        self.addresses(arguments);
        self.files(arguments)?;
        if let Err(error) = arguments.tls.read() {
            self.add_problem("tls-cert", &error);
        }
        if let Some(path) = arguments.observer.access_log_file()
            && let Err(why) = check_appendable(path)
        {
            self.add_problem("access-log", format_args!("{}: {why}", path.display()));
        }
        self.sandbox(arguments);
        Ok(())
    }

    fn addresses(&mut self, arguments: &Arguments) {
        match (
            &arguments.addr.clone().or_else(|| DEFAULT_ADDRESS.parse().ok()),
            arguments.observer.metrics_addr,
        ) {
            (Some(Address::Internet(address)), Some(metrics))
                if *address == metrics && metrics.port() != 0 =>
            {
                self.add_problem(
                    "metrics-addr",
                    format_args!("{metrics} is the address of the files: choose another"),
                );
            }
            (Some(Address::Unix(address)), _) => {
                if let Some(path) = address.as_pathname()
                    && let Err(why) = check_can_create(parent(path)).and_then(|()| check_socket_path(path))
                {
                    self.add_problem("addr", format_args!("{}: {why}", path.display()));
                }
            }
            _ => {}
        }
        if let Some(path) = &arguments.handover
            && let Err(why) = check_can_create(parent(path))
        {
            self.add_problem("handover", format_args!("{}: {why}", path.display()));
        }
    }

    fn cores(&mut self, arguments: &Arguments) {
        if let Some(why) = arguments.cores.as_ref().and_then(Cores::local_problem) {
            self.add_problem("cores", why);
        }
    }

    /// Whether the limit of open files has room for what is to be served.
    fn descriptors(&mut self, arguments: &Arguments) {
        let workers = arguments.cores.as_ref().map_or_else(usable_cores, |cores| cores.0.len());
        limits::raise_open_files();
        let descriptors = Descriptors::of_process(workers, arguments.observer.metrics_addr.is_some());
        if let Some(why) = descriptors.problem(arguments.connections.max_connections()) {
            self.add_problem("max-connections", why);
        }
    }

    /// The sandbox, where all of it is wished for; without a folder there is nothing to leave open in it.
    fn sandbox(&mut self, arguments: &Arguments) {
        let address = match &arguments.addr {
            Some(Address::Unix(address)) => address.as_pathname(),
            _ => None,
        };
        let server_paths = ServerPaths {
            folder: &arguments.folder,
            socket_file: address,
            handover: arguments.handover.as_deref(),
            tls: &arguments.tls,
            observer: &arguments.observer,
        };
        if arguments.sandbox == SandboxMode::On
            && let Ok(paths) = server_paths.allowed_paths()
            && let Err(why) = Sandbox::probe(&paths)
        {
            self.add_problem("sandbox", why);
        }
    }

    /// The driver, and on it the folder and the files that options name.
    fn files(&mut self, arguments: &Arguments) -> io::Result<()> {
        let mut options = arguments.files.clone().into_options(1);
        let invalid = options.validation_errors();
        invalid.iter().for_each(|invalid| self.option(invalid));
        if !invalid.is_empty() {
            // The folder, and what is well-formed of files in it, can be looked at all the same.
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
        match Files::open(&arguments.folder, options) {
            Ok(files) => {
                let unusable = runtime.block_on(files.invalid_option_files());
                unusable.iter().for_each(|unusable| self.option(unusable));
                if let Err(why) = check_searchable(&arguments.folder) {
                    self.add_problem("folder", why);
                }
            }
            Err(FilesError::Option(invalid)) => self.option(&invalid),
            Err(error) => self.add_problem("folder", format_args!("{}: {error}", arguments.folder.display())),
        }
        Ok(())
    }
}

/// Whether lines can be put at the end of a file, which need not be there. Nothing is made or opened.
fn check_appendable(path: &Path) -> Result<(), String> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err("it is a folder: name a file in it".to_owned()),
        Ok(_) => check_access(path, Access::WRITE_OK)
            .map_err(|error| format!("{error}: give this user the right to write to it")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => check_can_create(parent(path)),
        Err(error) => Err(format!("{error}: choose a file that can be reached")),
    }
}

/// Whether this user may use what is in a folder: opening the folder needs no right to it.
pub fn check_searchable(folder: &Path) -> Result<(), String> {
    check_access(folder, Access::EXEC_OK).map_err(|error| {
        format!("{}: {error}: give this user the right to enter it (chmod o+x)", folder.display())
    })
}

/// Whether this user may remove a file, by the rights of its folder.
pub fn check_can_remove(file: &Path) -> Result<(), String> {
    check_can_create(parent(file))
}

fn check_can_create(folder: &Path) -> Result<(), String> {
    let named = |why: &dyn std::fmt::Display| format!("{}: {why}", folder.display());
    match fs::metadata(folder) {
        Ok(metadata) if !metadata.is_dir() => Err(named(&"it is no folder: choose one")),
        Ok(_) => check_access(folder, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|error| named(&format_args!("{error}: give this user the right to make files there"))),
        Err(error) => Err(named(&format_args!("{error}: make this folder first"))),
    }
}

/// A socket that is there is replaced if nobody listens, or is the running server's, which is to end before.
fn check_socket_path(path: &Path) -> Result<(), String> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err("it exists, and is no socket: choose another path".to_owned())
        }
        _ => Ok(()),
    }
}

/// Whether this user may (`faccessat2(2)`).
fn check_access(path: &Path, access: Access) -> rustix::io::Result<()> {
    accessat(CWD, path, access, AtFlags::EACCESS)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}
