//! Subcommands: parse, call, print. One file each, no logic.

pub mod args;
mod cache_dir;
pub mod doctor;
mod logger;
mod watch;

use crate::target::{self, Inherited};
use args::Command;
use std::{process::ExitCode, time::Instant};

/// Runs the command line and returns the process's exit code.
#[must_use]
pub fn main() -> ExitCode {
    let start = Instant::now();
    // First of all, before anything changes or opens: what the child is to be given.
    let secured = target::secure_stdio();
    let inherited = Inherited::capture();
    if let Err(e) = secured {
        eprintln!("perf-gate: the standard streams are closed and cannot be replaced: {e}");
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
