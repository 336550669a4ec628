//! Subcommands: parse, call, print.

/// Runs the command line and returns the process's exit code.
#[must_use]
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(64)
}
