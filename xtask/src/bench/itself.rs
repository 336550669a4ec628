//! perf-gate itself: how long a program waits for its release, how soon perf-gate is gone after the
//! program's exit, and how much memory it takes. Short runs of an allocating program will do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use super::pairs::{Measured, spread};
use super::runner::{Program, Runner, Sample, Variant};
use crate::error::{Error, FileContext, Result};
use crate::run::{elevated, run};

const COLD_RUNS: u32 = 5;

pub fn measure(runner: &Runner, pairs: u32) -> Result<()> {
    let program = Program::new("churn.mjs", &["100000".to_owned()]);
    let measured = Measured::run(runner, &program, &[Variant::Watched], pairs)?;
    let (plain, watched): (Vec<Sample>, Vec<Sample>) = measured
        .variants
        .into_iter()
        .flat_map(|row| row.pairs)
        .unzip();
    println!("| perf-gate itself | median (range) |");
    println!("|---|---|");
    let warm: Vec<f64> = watched.iter().filter_map(release_ms).collect();
    println!(
        "| start to release, warm cache, ms | {} |",
        spread(&warm, 1)
    );
    for (name, options) in [
        ("cold cache", &["--no-prove"] as &[&str]),
        ("first use of this node, with its proof", &[]),
    ] {
        let mut cold = Vec::new();
        for _ in 0..COLD_RUNS {
            let cache = runner.scratch.join("cold");
            // perf-gate trusts no cache that another user can write to, so it makes this one as root.
            run(elevated(Path::new("/bin/rm"))?.arg("-rf").arg(&cache))?;
            let sample = runner.run_with(&program, Variant::Watched, options, Some(&cache))?;
            cold.extend(release_ms(&sample));
        }
        println!("| start to release, {name}, ms | {} |", spread(&cold, 1));
    }
    let back = |samples: &[Sample]| -> Vec<f64> { samples.iter().map(|s| s.return_ms).collect() };
    println!(
        "| return after the program's last words, ms | {} |",
        spread(&back(&watched), 1)
    );
    println!(
        "| the same without perf-gate, ms | {} |",
        spread(&back(&plain), 1)
    );
    println!(
        "| own peak memory, MB | {} |",
        spread(&[peak_mb(runner)?], 1)
    );
    Ok(())
}

fn release_ms(sample: &Sample) -> Option<f64> {
    let ns = sample.overhead.as_ref()?["start_to_release_ns"].as_f64()?;
    Some(ns / 1e6)
}

/// Peak resident memory of perf-gate alone. wait4() would fold the program's own peak in, so the
/// kernel's high-water mark is read while it runs; it only grows, hence the last reading counts.
fn peak_mb(runner: &Runner) -> Result<f64> {
    let program = Program::new("churn.mjs", &[]);
    let record = runner.scratch.join("run.ndjson");
    let mut command = runner.command(&program, Variant::Watched, &[], &record)?;
    command
        .env("LAST_WORDS", runner.scratch.join("last-words.json"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().map_err(|source| Error::Start {
        program: "perf-gate".to_owned(),
        source,
    })?;
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let mut peak_kb = 0.0_f64;
    while child.try_wait().file("wait for", &status)?.is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kb = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        peak_kb = peak_kb.max(kb.unwrap_or(0.0));
        thread::sleep(Duration::from_millis(2));
    }
    Ok(peak_kb / 1024.0)
}
