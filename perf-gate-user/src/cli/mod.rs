//! Subcommands: parse, call, print. One file each, no logic.

pub mod args;
mod cache_dir;
pub mod doctor;
mod logger;
mod watch;

use crate::{
    report::text,
    target::{self, Inherited},
};
use args::Command;
use std::{
    fmt::Display,
    io::{self, Write as _},
    process::ExitCode,
    time::Instant,
};

/// Runs the command line and returns the process's exit code.
#[must_use]
pub fn main() -> ExitCode {
    let start = Instant::now();
    // First of all, before anything changes or opens: what the child is to be given.
    let secured = target::secure_stdio();
    let inherited = Inherited::capture();
    if let Err(e) = secured {
        complain(format_args!(
            "the standard streams are closed and cannot be replaced: {e}"
        ));
        return target::exit::CANNOT_VOUCH.into();
    }
    let cli = match args::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(refusal) => {
            refusal.print();
            return refusal.code.into();
        }
    };
    match cli.command {
        Command::Watch(args) => watch::run(&args, inherited, start).into(),
        Command::Doctor(args) => doctor::run(&args).into(),
    }
}

/// One line to standard error, whatever is in the text. Not by `eprintln!`, which panics where standard
/// error is full or nobody reads it.
fn complain(what: impl Display) {
    let what = what.to_string();
    // There is nowhere left to say that this failed.
    let _ = writeln!(io::stderr(), "perf-gate: {}", text::clean(&what));
}
