//! `test`: everything that has to hold before a change is good, in one command.
//!
//! Steps run in order and a failed one does not hide the next; the summary at the end names each with its
//! duration. A step that cannot run here is skipped aloud, and under CI, where nobody reads the middle of
//! a log, a skip is a failure. The end-to-end tests run on the committed object; when the object built
//! here has other bytes (another compiler), they run on that one as well.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::ebpf;
use crate::error::{Error, FileContext, Result};
use crate::nodes;
use crate::run::{capture, is_root, run, target_dir, which, workspace};
use crate::vm;

enum Outcome {
    Done,
    Skipped(String),
}

struct Step {
    name: &'static str,
    took: Duration,
    result: Result<Outcome>,
}

#[derive(Default)]
struct Summary(Vec<Step>);

impl Summary {
    /// Runs one step and remembers how it went; true if what builds on it can go on.
    fn step(&mut self, name: &'static str, work: impl FnOnce() -> Result<Outcome>) -> bool {
        println!("== {name}");
        let start = Instant::now();
        let result = work();
        match &result {
            Ok(Outcome::Done) => {}
            Ok(Outcome::Skipped(why)) => println!("== {name}: SKIPPED: {why}"),
            Err(why) => println!("== {name}: FAILED: {why}"),
        }
        let usable = matches!(result, Ok(Outcome::Done));
        self.0.push(Step {
            name,
            took: start.elapsed(),
            result,
        });
        usable
    }

    fn print(&self) -> Result<()> {
        let ci = env::var_os("CI").is_some_and(|value| !value.is_empty());
        let mut bad = 0;
        println!("\n== summary");
        for step in &self.0 {
            let (word, why) = match &step.result {
                Ok(Outcome::Done) => ("ok", String::new()),
                Ok(Outcome::Skipped(why)) => {
                    bad += usize::from(ci);
                    ("SKIPPED", format!(": {why}"))
                }
                Err(why) => {
                    bad += 1;
                    ("FAILED", format!(": {why}"))
                }
            };
            println!(
                "{word:<8} {:>7.1} s  {}{why}",
                step.took.as_secs_f64(),
                step.name
            );
        }
        if bad == 0 {
            return Ok(());
        }
        Err(Error::told(format!(
            "{bad} of {} steps did not pass",
            self.0.len()
        )))
    }
}

pub fn test() -> Result<()> {
    let mut summary = Summary::default();
    summary.step("format", || {
        run(cargo().args(["fmt", "--all", "--check"])).map(done)
    });
    summary.step("lints", || {
        run(cargo()
            .args(["clippy", "--locked", "--workspace", "--all-targets"])
            .args(["--", "-D", "warnings"]))
        .map(done)
    });
    summary.step("unit tests", || {
        run(cargo().args([
            "test",
            "--locked",
            "--workspace",
            "--exclude",
            "perf-gate-tests",
        ]))
        .map(done)
    });
    let mut fresh = None;
    summary.step("eBPF object", || {
        if let Err(why) = ebpf::Toolchain::find() {
            return Ok(Outcome::Skipped(why.to_string()));
        }
        fresh = ebpf::check()?;
        Ok(Outcome::Done)
    });
    let nodes = summary.step("nodes", || {
        for version in nodes::MATRIX {
            println!("{}", nodes::fetch(version)?.display());
        }
        Ok(Outcome::Done)
    });
    // A step of its own: only Debian has it, and the others are tested without it.
    summary.step("node in a shared library", || {
        Ok(match nodes::fetch(nodes::DEBIAN) {
            Ok(_) => Outcome::Done,
            Err(why) => Outcome::Skipped(why.to_string()),
        })
    });
    let built = summary.step("build", || build(None).map(done));
    if nodes && built {
        summary.step("end to end", end_to_end);
        summary.step("other kernels", || match vm::missing_tool() {
            Some(tool) => Ok(Outcome::Skipped(vm::what_to_install(tool))),
            None => vm::vm(&vm::Options::default()).map(done),
        });
    }
    if let Some(object) = fresh {
        let built = summary.step("build with the object made here", || {
            build(Some(&object)).map(done)
        });
        if nodes && built {
            summary.step("end to end with the object made here", end_to_end);
        }
    }
    summary.print()
}

fn done(_: ()) -> Outcome {
    Outcome::Done
}

fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(workspace()).stdin(Stdio::null());
    // Set by the cargo we run under, about xtask; the packages built below must not see them.
    for (key, _) in env::vars_os() {
        let name = key.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&key);
        }
    }
    command
}

/// Builds the release binary, with another object than the committed one when given.
pub fn build(object: Option<&Path>) -> Result<()> {
    let mut command = cargo();
    command.args([
        "build",
        "--locked",
        "--release",
        "--package",
        "perf-gate-user",
    ]);
    if let Some(object) = object {
        command.env("PERF_GATE_BPF_OBJECT", object);
    }
    run(&mut command)
}

/// The probe plan of each of `nodes`.
pub fn symbols(nodes: &[PathBuf]) -> Result<()> {
    let mut command = cargo();
    command.args(["run", "--locked", "--quiet", "--package", "perf-gate-user"]);
    command.args(["--example", "symbols", "--"]);
    for node in nodes {
        // cargo runs in the workspace, the names were given where the user stands.
        command.arg(fs::canonicalize(node).file("find", node)?);
    }
    run(&mut command)
}

/// The binary that [`build`] makes.
pub fn binary() -> PathBuf {
    target_dir().join("release/perf-gate")
}

fn end_to_end() -> Result<Outcome> {
    let tests = binaries()?;
    let mut found = 0;
    for test in &tests {
        found += count(test, &[])?;
    }
    if found == 0 {
        return Err(Error::told(
            "the package perf-gate-tests has no tests; a run of none proves nothing",
        ));
    }
    if !is_root() && which("sudo").is_none() {
        return Ok(Outcome::Skipped(
            "loading eBPF programs needs root, and there is no sudo: run this as root".to_owned(),
        ));
    }
    let mut failed = Vec::new();
    for test in tests {
        if let Err(why) = run_tests(&test, &[], &[]) {
            failed.push(format!("{}: {why}", test.display()));
        }
    }
    if failed.is_empty() {
        return Ok(Outcome::Done);
    }
    Err(Error::told(failed.join("; ")))
}

/// How many tests of the executable `args` choose.
pub fn count(test: &Path, args: &[&str]) -> Result<usize> {
    let listed = capture(
        Command::new(test)
            .args(["--list", "--format", "terse"])
            .args(args),
    )?;
    let tests = listed.lines().filter(|line| line.ends_with(": test"));
    Ok(tests.count())
}

/// Runs a test executable that [`binaries`] built as ourselves, as root: cargo itself must not run as root
/// in somebody's checkout, or it leaves files there that they cannot remove.
pub fn run_tests(test: &Path, args: &[&str], more: &[(&str, &str)]) -> Result<()> {
    // The binary moves aside, so that a build in between does not swap it under a running test.
    let binary = target_dir().join("tested-perf-gate");
    fs::copy(self::binary(), &binary).file("copy to", &binary)?;
    let mut settings = vec![
        ("PERF_GATE_BIN", binary.into_os_string()),
        ("PERF_GATE_NODES", nodes::cache()?.into_os_string()),
    ];
    settings.extend(more.iter().map(|(key, value)| (*key, value.into())));
    let mut command = if is_root() {
        let mut command = Command::new(test);
        command.envs(settings);
        command
    } else {
        let mut sudo = Command::new("sudo");
        sudo.args(["-E", "env"]);
        for (key, value) in &settings {
            let mut setting = OsString::from(format!("{key}="));
            setting.push(value);
            sudo.arg(setting);
        }
        sudo.arg(test);
        sudo
    };
    command.args(args).current_dir(workspace().join("tests"));
    run(&mut command)
}

/// The test executables of perf-gate-tests, as cargo reports them.
pub fn binaries() -> Result<Vec<PathBuf>> {
    let messages = capture(
        cargo()
            .args([
                "test",
                "--locked",
                "--no-run",
                "--package",
                "perf-gate-tests",
            ])
            .args(["--message-format", "json-render-diagnostics"]),
    )?;
    Ok(messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| {
            message["reason"] == "compiler-artifact" && message["profile"]["test"] == true
        })
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .collect())
}
