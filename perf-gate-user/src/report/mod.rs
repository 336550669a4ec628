//! Reporters: a finished run and its verdict, printed. One file per format.

pub mod checks;
pub mod human;
pub mod junit;
pub mod ndjson;
pub mod output;
mod schema;
mod table;
pub mod terminal;
pub mod text;

use std::io;

use crate::{judge::Verdict, model::Run};

/// A format that needs nothing but the finished run. ([`ndjson::Record`] also writes while the
/// command runs and replaces files, hence its own interface.)
pub trait Report {
    fn write(&self, run: &Run, verdict: &Verdict, out: &mut dyn io::Write) -> io::Result<()>;
}

#[cfg(test)]
pub(crate) mod sample;
