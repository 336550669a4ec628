//! The command line as a contract: what is said, where, and with which exit code.

mod doctor;
mod golden;
mod identity;
mod usage;

use perf_gate_tests::{binary, cache_dir};
use std::process::{Command, Output, Stdio};

/// `perf-gate` with the suite's cache and no colours.
fn perf_gate(args: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command
        .args(args)
        .env("PERF_GATE_CACHE_DIR", cache_dir())
        .env("NO_COLOR", "1")
        .env_remove("NODE_OPTIONS")
        .stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Ran {
    Ran::from(perf_gate(args).output().expect("perf-gate starts"))
}

#[derive(Debug)]
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}
