//! `bench`: what observing costs, and how soon perf-gate gets out of the way.
//!
//! Machines drift, so every observed run is paired with an unobserved one right before it and only the
//! ratio of the two counts; the median of many ratios is printed with the extremes, next to the ratio of
//! unobserved runs among themselves, which is the noise any other figure has to be read against. Costs are
//! those of the program itself, from its start to its exit, told by itself (bench/last-words.mjs); the
//! time before its release and after its exit is measured apart. The rivals run under the same regime.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::error::{Error, FileContext, Result, ignore_missing};
use crate::nodes;
use crate::run::{elevated, run, target_dir, workspace};
use crate::test;

#[derive(clap::Args)]
pub struct Options {
    /// Paired runs of each kind
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Node version to run on
    #[arg(long, default_value = "22.23.5")]
    node: String,
}

/// How a program is run.
#[derive(Clone, Copy)]
enum Variant {
    Plain,
    Watched,
    TraceGc,
    Observer,
}

impl Variant {
    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "nothing (noise)",
            Self::Watched => "perf-gate watch",
            Self::TraceGc => "--trace-gc",
            Self::Observer => "PerformanceObserver",
        }
    }
}

/// What one run told of itself.
struct Sample {
    wall_ms: f64,
    cpu_ms: f64,
    /// From the program's last words to the return of what we started.
    return_ms: f64,
    /// The `overhead` line of the machine record, when the run had one.
    overhead: Option<Value>,
}

struct Bench {
    node: PathBuf,
    scratch: PathBuf,
}

pub fn bench(options: &Options) -> Result<()> {
    test::build(None)?;
    let scratch = target_dir().join("bench");
    fs::create_dir_all(&scratch).file("create", &scratch)?;
    let bench = Bench {
        node: nodes::fetch(&options.node)?,
        scratch,
    };
    println!(
        "Node {}, {} pairs, ratios to an unobserved run right before\n",
        options.node, options.pairs
    );
    println!("| program | observed by | wall: median (min-max) | CPU: median (min-max) |");
    println!("|---|---|---|---|");
    let mut watched = Vec::new();
    for (program, script) in [("allocation-heavy", "churn.mjs"), ("idle heap", "idle.mjs")] {
        // Pages, caches and the plan of the binary are warm for everybody.
        bench.run(script, Variant::Watched)?;
        for variant in [
            Variant::Plain,
            Variant::Watched,
            Variant::TraceGc,
            Variant::Observer,
        ] {
            let mut wall = Vec::new();
            let mut cpu = Vec::new();
            for _ in 0..options.pairs {
                let plain = bench.run(script, Variant::Plain)?;
                let other = bench.run(script, variant)?;
                wall.push(other.wall_ms / plain.wall_ms);
                cpu.push(other.cpu_ms / plain.cpu_ms);
                if matches!(variant, Variant::Watched) {
                    watched.push((other, plain));
                }
            }
            println!(
                "| {program} | {} | {} | {} |",
                variant.name(),
                spread(&wall, 3),
                spread(&cpu, 3)
            );
        }
    }
    println!();
    bench.around(&watched)
}

impl Bench {
    /// Before the release, after the exit, and memory.
    fn around(&self, watched: &[(Sample, Sample)]) -> Result<()> {
        println!("| perf-gate itself | median (min-max) |");
        println!("|---|---|");
        let release = |sample: &Sample| {
            sample.overhead.as_ref()?["start_to_release_ns"]
                .as_f64()
                .map(|ns| ns / 1e6)
        };
        let warm: Vec<f64> = watched
            .iter()
            .filter_map(|(sample, _)| release(sample))
            .collect();
        println!(
            "| start to release, warm cache, ms | {} |",
            spread(&warm, 1)
        );
        for (name, options) in [
            ("cold cache", &["--no-prove"] as &[&str]),
            ("first use of this node, with its proof", &[]),
        ] {
            let mut cold = Vec::new();
            for _ in 0..5 {
                let cache = self.scratch.join("cold");
                // perf-gate trusts no cache that another user can write to, so it makes this one as root.
                run(elevated(Path::new("/bin/rm"))?.arg("-rf").arg(&cache))?;
                let sample = self.run_with("idle.mjs", Variant::Watched, options, Some(&cache))?;
                cold.extend(release(&sample));
            }
            println!("| start to release, {name}, ms | {} |", spread(&cold, 1));
        }
        let back: Vec<f64> = watched.iter().map(|(sample, _)| sample.return_ms).collect();
        let plain: Vec<f64> = watched.iter().map(|(_, plain)| plain.return_ms).collect();
        println!(
            "| return after the program's last words, ms | {} |",
            spread(&back, 1)
        );
        println!("| the same without perf-gate, ms | {} |", spread(&plain, 1));
        println!(
            "| own peak memory, MB | {} |",
            spread(&[self.peak_mb()?], 1)
        );
        Ok(())
    }

    fn run(&self, script: &str, variant: Variant) -> Result<Sample> {
        self.run_with(script, variant, &[], None)
    }

    fn run_with(
        &self,
        script: &str,
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
        let mut command = self.command(script, variant, options, &record)?;
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
                "{script} under {} ended with {}: {}",
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
            overhead,
        })
    }

    fn command(
        &self,
        script: &str,
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
            Variant::Plain | Variant::Watched => {}
        }
        command
            .args(import("last-words.mjs"))
            .arg(folder.join(script))
            .stdin(Stdio::null());
        Ok(command)
    }

    /// Peak resident memory of perf-gate alone. wait4() would fold the program's own peak in, so the
    /// kernel's high-water mark is read while it runs; it only grows, hence the last reading counts.
    fn peak_mb(&self) -> Result<f64> {
        let mut command = self.command(
            "churn.mjs",
            Variant::Watched,
            &[],
            &self.scratch.join("run.ndjson"),
        )?;
        command
            .env("LAST_WORDS", self.scratch.join("last-words.json"))
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

/// `median (min-max)`, or that nothing was measured, which is not zero.
fn spread(values: &[f64], digits: usize) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (Some(min), Some(max)) = (sorted.first(), sorted.last()) else {
        return "not measured".to_owned();
    };
    let upper = sorted[sorted.len() / 2];
    let lower = sorted[(sorted.len() - 1) / 2];
    let median = f64::midpoint(lower, upper);
    if sorted.len() == 1 {
        return format!("{median:.digits$}");
    }
    format!("{median:.digits$} ({min:.digits$}-{max:.digits$})")
}

#[cfg(test)]
mod tests {
    use super::spread;

    #[test]
    fn spread_names_median_and_extremes() {
        assert_eq!(spread(&[3.0, 1.0, 2.0], 1), "2.0 (1.0-3.0)");
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0], 2), "2.50 (1.00-4.00)");
        assert_eq!(spread(&[1.0], 0), "1");
        assert_eq!(spread(&[], 0), "not measured");
    }
}
