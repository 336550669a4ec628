//! Child processes and the few folders every chore needs.
//!
//! `cargo xtask` runs inside cargo, which leaves its own toolchain choice in the environment; children
//! that must use another compiler start from [`foreign`], which takes those traces away.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// The workspace this xtask runs in: cargo says so, the build remembers it otherwise.
pub fn workspace() -> PathBuf {
    let here = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().map(Path::to_path_buf).unwrap_or(here)
}

/// Where cargo puts what it builds here.
pub fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// First file called `name` in PATH.
pub fn which(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// Whether eBPF programs can be loaded without help; a container's root without capabilities counts, and
/// is told by perf-gate itself what it lacks.
pub fn is_root() -> bool {
    // SAFETY: geteuid takes nothing, changes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// A command that runs `program` as root: as it is if we are root, through sudo otherwise. sudo leaves
/// SUDO_UID behind, by which perf-gate gives the watched program its own user back.
pub fn elevated(program: &Path) -> Result<Command> {
    if is_root() {
        return Ok(Command::new(program));
    }
    let sudo = which("sudo").ok_or_else(|| {
        Error::told("loading eBPF programs needs root, and there is no sudo: run this as root")
    })?;
    let mut command = Command::new(sudo);
    command.arg("-E").arg(program);
    Ok(command)
}

/// A command that does not inherit the choices of the cargo we run under.
pub fn foreign(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (key, _) in env::vars_os() {
        let name = key.to_string_lossy();
        let keep = matches!(&*name, "CARGO_HOME" | "CARGO_TARGET_DIR")
            || name.starts_with("CARGO_HTTP_")
            || name.starts_with("CARGO_NET_")
            || name.starts_with("CARGO_REGISTRIES_")
            || name.starts_with("CARGO_SOURCE_");
        let cargo = name.starts_with("CARGO") || name.starts_with("RUST");
        if (cargo && !keep && name != "RUSTUP_HOME") || name == "LD_LIBRARY_PATH" {
            command.env_remove(&key);
        }
    }
    command
}

/// Runs to the end with our own output streams; anything but success is an error.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|source| Error::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        source,
    })?;
    if status.success() {
        return Ok(());
    }
    Err(Error::Command {
        command: shown(command),
        status: status.to_string(),
    })
}

/// Runs to the end and returns trimmed standard output; standard error passes through.
pub fn capture(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|source| Error::Start {
            program: command.get_program().to_string_lossy().into_owned(),
            source,
        })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(Error::Command {
        command: shown(command),
        status: output.status.to_string(),
    })
}

fn shown(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}
