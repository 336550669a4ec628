//! `soak`: what the end-to-end tests do a few times, hundreds of times. The tests themselves do it, made
//! longer by one environment variable, so that a soak asserts what a test asserts and nothing else.

use clap::{Args, ValueEnum};

use crate::error::{Error, Result};
use crate::test;

/// Makes the tests that know it run as long as a soak.
const VARIABLE: (&str, &str) = ("PERF_GATE_SOAK", "1");

#[derive(Args)]
pub struct Options {
    /// What to repeat
    what: Soak,
    /// Builds to do it on, as the tests name them: `node_24`, `debian_18`; all by default
    #[arg(value_name = "BUILD")]
    builds: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Soak {
    /// 200 processes that allocate nothing in their windows, while every processor is kept busy
    Zero,
    /// 20 GB in eight workers and the main isolate, against the sum of what was allocated
    Workers,
}

impl Soak {
    /// Test executable, and test in it.
    const fn test(self) -> (&'static str, &'static str) {
        match self {
            Self::Zero => ("bytes", "zero::zero"),
            Self::Workers => ("bytes", "isolates::eight_workers"),
        }
    }
}

pub fn soak(options: &Options) -> Result<()> {
    let (executable, name) = options.what.test();
    test::build(None)?;
    let tests = test::binaries()?;
    let found = tests.iter().find(|path| {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        file.rsplit_once('-').map(|(stem, _)| stem) == Some(executable)
    });
    let Some(path) = found else {
        return Err(Error::told(format!(
            "perf-gate-tests has no test executable {executable}"
        )));
    };
    let filters: Vec<String> = match options.builds.as_slice() {
        [] => vec![format!("{name}::")],
        builds => builds.iter().map(|b| format!("{name}::{b}")).collect(),
    };
    // One at a time: the tests bring their own load.
    let mut args = vec!["--test-threads=1"];
    args.extend(filters.iter().map(String::as_str));
    if test::count(path, &args)? == 0 {
        return Err(Error::told(format!(
            "no such build: {}; try node_24",
            options.builds.join(", ")
        )));
    }
    test::run_tests(path, &args, &[VARIABLE])
}
