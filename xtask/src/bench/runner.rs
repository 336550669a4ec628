//! One run of a program under one observer, or under none, and what it told of itself.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::error::{Error, FileContext, Result, ignore_missing};
use crate::nodes;
use crate::run::{elevated, target_dir, workspace};
use crate::test;

/// How a program is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    Plain,
    Watched,
    TraceGc,
    Observer,
    Poller,
}

impl Variant {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "nothing (noise)",
            Self::Watched => "perf-gate watch",
            Self::TraceGc => "--trace-gc",
            Self::Observer => "PerformanceObserver",
            Self::Poller => "heapUsed every 10 ms",
        }
    }
}

/// A script of xtask/bench and its arguments.
pub struct Program {
    script: &'static str,
    args: Vec<String>,
}

impl Program {
    pub fn new(script: &'static str, args: &[String]) -> Self {
        Self {
            script,
            args: args.to_vec(),
        }
    }
}

/// What one run told of itself.
#[derive(Clone)]
pub struct Sample {
    pub wall_ms: f64,
    pub cpu_ms: f64,
    /// From the program's last words to the return of what we started.
    pub return_ms: f64,
    /// All of the last words.
    pub told: Value,
    /// The `overhead` line of the machine record, when the run had one.
    pub overhead: Option<Value>,
}

pub struct Runner {
    node: PathBuf,
    pub scratch: PathBuf,
}

impl Runner {
    pub fn new(node: &str) -> Result<Self> {
        test::build(None)?;
        let scratch = target_dir().join("bench");
        fs::create_dir_all(&scratch).file("create", &scratch)?;
        Ok(Self {
            node: nodes::fetch(node)?,
            scratch,
        })
    }

    pub fn run(&self, program: &Program, variant: Variant) -> Result<Sample> {
        self.run_with(program, variant, &[], None)
    }

    pub fn run_with(
        &self,
        program: &Program,
        variant: Variant,
        options: &[&str],
        cache: Option<&Path>,
    ) -> Result<Sample> {
        let words = self.scratch.join("last-words.json");
        let record = self.scratch.join("run.ndjson");
        for file in [&words, &record] {
            fs::remove_file(file)
                .or_else(ignore_missing)
                .file("remove", file)?;
        }
        let mut command = self.command(program, variant, options, &record)?;
        command.env("LAST_WORDS", &words);
        if let Some(cache) = cache {
            command.env("PERF_GATE_CACHE_DIR", cache);
        }
        let output = command.output().map_err(|source| Error::Start {
            program: command.get_program().to_string_lossy().into_owned(),
            source,
        })?;
        let returned_ns = monotonic_ns();
        if !output.status.success() {
            return Err(Error::told(format!(
                "{} under {} ended with {}: {}",
                program.script,
                variant.name(),
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            )));
        }
        let text = fs::read_to_string(&words).file("read", &words)?;
        let told: Value = serde_json::from_str(&text).unwrap_or_default();
        let number = |key: &str| {
            let value = &told[key];
            let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
            number.ok_or_else(|| Error::told(format!("{} has no {key}: {text}", words.display())))
        };
        let overhead = fs::read_to_string(&record).ok().and_then(|lines| {
            let mut lines = lines
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.find(|line| line["type"] == "overhead")
        });
        Ok(Sample {
            wall_ms: number("wall_ms")?,
            cpu_ms: number("cpu_ms")?,
            return_ms: (returned_ns as f64 - number("exit_ns")?) / 1e6,
            told,
            overhead,
        })
    }

    pub fn command(
        &self,
        program: &Program,
        variant: Variant,
        options: &[&str],
        record: &Path,
    ) -> Result<Command> {
        let folder = workspace().join("xtask/bench");
        let import =
            |file: &str| -> [OsString; 2] { ["--import".into(), folder.join(file).into()] };
        let mut command = match variant {
            Variant::Watched => {
                let mut command = elevated(&test::binary())?;
                command
                    .args(["watch", "--quiet"])
                    .args(options)
                    .arg("--ndjson")
                    .arg(record)
                    .arg("--")
                    .arg(&self.node);
                command
            }
            _ => Command::new(&self.node),
        };
        match variant {
            Variant::TraceGc => drop(command.arg("--trace-gc")),
            Variant::Observer => drop(command.args(import("observer.mjs"))),
            Variant::Poller => drop(command.args(import("poller.mjs"))),
            Variant::Plain | Variant::Watched => {}
        }
        command
            .args(import("last-words.mjs"))
            .arg(folder.join(program.script))
            .args(&program.args)
            .stdin(Stdio::null());
        Ok(command)
    }
}

/// The clock of Node's `process.hrtime`.
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is a valid timespec to write to; this clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
