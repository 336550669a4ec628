//! The one error type of the chores: each variant renders as one line that says what failed and what to
//! do about it, because its reader is a person at a terminal or a CI log.

use std::io;
use std::path::PathBuf;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {what} {}: {source}", path.display())]
    File {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("cannot start {program}: {source}; install it or put it into PATH")]
    Start { program: String, source: io::Error },
    #[error("{command} ended with {status}")]
    Command { command: String, status: String },
    /// A condition of the chore itself, already worded for the reader.
    #[error("{0}")]
    Told(String),
}

impl Error {
    pub fn told(message: impl Into<String>) -> Self {
        Self::Told(message.into())
    }
}

/// Names the file an I/O error is about, which `io::Error` leaves out.
pub trait FileContext<T> {
    fn file(self, what: &'static str, path: impl Into<PathBuf>) -> Result<T>;
}

impl<T> FileContext<T> for io::Result<T> {
    fn file(self, what: &'static str, path: impl Into<PathBuf>) -> Result<T> {
        self.map_err(|source| Error::File {
            what,
            path: path.into(),
            source,
        })
    }
}

/// Removing what is not there is success.
pub fn ignore_missing(why: io::Error) -> io::Result<()> {
    if why.kind() == io::ErrorKind::NotFound {
        return Ok(());
    }
    Err(why)
}
