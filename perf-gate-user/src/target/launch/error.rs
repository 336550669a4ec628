//! Why a launch failed, in one line, and the exit code that stands for it.
//!
//! The child can only report a stage and an errno; what it was about to do is known here.

use std::{ffi::OsString, io, path::PathBuf};

use crate::{
    model::End,
    target::{
        child::{Message, Stage},
        exit, search,
    },
};

#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("no command to run; give one after --")]
    NoCommand,
    #[error("cannot run {}: not found; {hint}", command.display())]
    NotFound {
        command: OsString,
        hint: &'static str,
    },
    #[error("cannot run {}: {why}", path.display())]
    NotExecutable { path: PathBuf, why: String },
    #[error("cannot run the command: {what} holds a NUL byte, which no program can be given")]
    Nul { what: &'static str },
    #[error(
        "cannot run the program as {user}: {step} failed ({source}); give perf-gate full root \
         rights, or pass --as-root"
    )]
    Identity {
        user: String,
        step: &'static str,
        source: io::Error,
    },
    #[error(
        "cannot run the program as {user}: it could become root again; this kernel or container \
         does not separate users, pass --as-root if that is meant"
    )]
    Regained { user: String },
    #[error("cannot run the program in {}: {source}; check the directory", cwd.display())]
    Directory { cwd: PathBuf, source: io::Error },
    #[error("the program ended before it was started ({end:?}); was it interrupted?")]
    Died { end: End },
    #[error(
        "cannot start a process: {what} failed ({source}); check the limits on processes and open \
         files (ulimit -u, ulimit -n)"
    )]
    Start {
        what: &'static str,
        source: io::Error,
    },
}

impl LaunchError {
    /// The exit code that stands for this failure.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoCommand | Self::Nul { .. } => exit::USAGE,
            Self::NotFound { .. } => exit::NOT_FOUND,
            Self::NotExecutable { .. } | Self::Directory { .. } => exit::NOT_EXECUTABLE,
            Self::Died { end } => exit::code_for(*end),
            Self::Identity { .. } | Self::Regained { .. } | Self::Start { .. } => {
                exit::CANNOT_VOUCH
            }
        }
    }
}

/// What error messages need to know about the launch.
#[derive(Debug, Default)]
pub(super) struct What {
    pub command: OsString,
    pub candidates: Vec<PathBuf>,
    pub cwd: Option<PathBuf>,
    pub user: Option<String>,
}

impl What {
    pub fn error(&self, message: Message) -> LaunchError {
        let source = io::Error::from_raw_os_error(message.errno);
        let user = self.user.clone().unwrap_or_default();
        let identity = |step, user, source| LaunchError::Identity { user, step, source };
        match message.stage {
            Stage::Groups => identity("setting the groups", user, source),
            Stage::Gid => identity("setting the group", user, source),
            Stage::Uid => identity("setting the user", user, source),
            Stage::Capabilities => identity("dropping capabilities", user, source),
            Stage::Regained => LaunchError::Regained { user },
            Stage::Directory => LaunchError::Directory {
                cwd: self.cwd.clone().unwrap_or_default(),
                source,
            },
            Stage::DeathSignal | Stage::Ready => LaunchError::Start {
                what: "tying the program's life to perf-gate's",
                source,
            },
            Stage::Stdio => LaunchError::Start {
                what: "setting the program's standard streams",
                source,
            },
            Stage::Exec => search::explain(
                &self.command,
                &self.candidates,
                message.index,
                message.errno,
                self.cwd.as_deref(),
                self.user.as_deref(),
            ),
        }
    }
}
