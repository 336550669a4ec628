//! What observing costs at a known allocation rate, against the goals set for it, and how often probes fire.
//!
//! A probe fires per allocation area, so its cost follows the bytes allocated; the same probes are dear or
//! cheap depending on how much else the program does. Hence two programs with the same objects and a
//! different amount of arithmetic between them, calibrated on this machine before anything is measured:
//! the time per object is linear in the steps, and two short runs give the line. The rate reached is
//! printed, not assumed. Hits of start-up and warm-up are taken off by a run that allocates nothing after.

use serde_json::Value;

use super::pairs::{Measured, Paired, median, spread};
use super::runner::{Program, Runner, Sample, Variant};
use crate::error::{Error, Result};

const RIVALS: [Variant; 3] = [Variant::Watched, Variant::TraceGc, Variant::Poller];
/// What bench/rate.mjs allocates per object.
const OBJECT_BYTES: f64 = 56.0;

/// A rate to reach and the wall ratio that must not be passed at it.
struct Target {
    gb_per_s: f64,
    megabytes: f64,
    goal: f64,
}

const TARGETS: [Target; 2] = [
    Target {
        gb_per_s: 1.0,
        megabytes: 1200.0,
        goal: 1.02,
    },
    Target {
        gb_per_s: 4.0,
        megabytes: 5000.0,
        goal: 1.08,
    },
];

pub fn measure(runner: &Runner, pairs: u32) -> Result<()> {
    let mut hits = Vec::new();
    println!(
        "| rate | observed by | wall: median (range) | CPU: median (range) | goal, wall | met |"
    );
    println!("|---|---|---|---|---|---|");
    for target in &TARGETS {
        let work = calibrate(runner, target.gb_per_s)?;
        let program = rate(work, target.megabytes);
        let measured = Measured::run(runner, &program, &RIVALS, pairs)?;
        for (variant, wall, cpu) in measured.ratios() {
            let (goal, met) = match (variant, median(&wall)) {
                (Variant::Watched, Some(ratio)) => {
                    let met = if ratio <= target.goal { "yes" } else { "no" };
                    (format!("{:.2}", target.goal), met)
                }
                _ => ("-".to_owned(), "-"),
            };
            println!(
                "| {} GB/s | {} | {} | {} | {goal} | {met} |",
                target.gb_per_s,
                variant.name(),
                spread(&wall, 3),
                spread(&cpu, 3)
            );
        }
        let before = hits_of(&runner.run(&rate(work, 0.0), Variant::Watched)?)?;
        hits.push(hits_row(target, &measured, before)?);
    }
    println!();
    println!(
        "| rate | GB/s, unobserved | probe hits per MB | ns per hit, of CPU time | polls of heapUsed |"
    );
    println!("|---|---|---|---|---|");
    for row in hits {
        println!("{row}");
    }
    Ok(())
}

fn rate(work: u32, megabytes: f64) -> Program {
    Program::new("rate.mjs", &[work.to_string(), megabytes.to_string()])
}

/// Steps of arithmetic per object for this rate on this machine.
fn calibrate(runner: &Runner, gb_per_s: f64) -> Result<u32> {
    let wanted_ns = OBJECT_BYTES / gb_per_s;
    let cost_ns = |work: u32, megabytes: f64| -> Result<f64> {
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            let sample = runner.run(&rate(work, megabytes), Variant::Plain)?;
            best = best.min(sample.wall_ms * OBJECT_BYTES / megabytes);
        }
        Ok(best)
    };
    let (few, many) = (4, if gb_per_s < 2.0 { 64 } else { 16 });
    let (low, high) = (cost_ns(few, 500.0)?, cost_ns(many, 250.0)?);
    let per_step = (high - low) / f64::from(many - few);
    let work = f64::from(few) + (wanted_ns - low) / per_step;
    if !work.is_finite() || work > 1e5 {
        return Err(Error::told(format!(
            "cannot calibrate a program to {gb_per_s} GB/s: objects took {low:.1} and {high:.1} ns with {few} and {many} steps; run it on a quieter machine"
        )));
    }
    // A machine too slow for the rate gets no arithmetic at all; the rate it reaches is printed.
    Ok(work.max(0.0).round() as u32)
}

fn hits_row(target: &Target, measured: &Measured, before: f64) -> Result<String> {
    let rates: Vec<f64> = measured
        .plain
        .iter()
        .map(|sample| target.megabytes / sample.wall_ms)
        .collect();
    let (mut per_mb, mut ns) = (Vec::new(), Vec::new());
    for (plain, watched) in pairs_of(measured, Variant::Watched) {
        let hits = hits_of(watched)? - before;
        per_mb.push(hits / target.megabytes);
        ns.push((watched.cpu_ms - plain.cpu_ms) * 1e6 / hits);
    }
    let mut polls = Vec::new();
    for (_, polled) in pairs_of(measured, Variant::Poller) {
        polls.extend(polled.told["polls"].as_f64());
    }
    Ok(format!(
        "| {} GB/s | {} | {} | {} | {} |",
        target.gb_per_s,
        spread(&rates, 2),
        spread(&per_mb, 2),
        spread(&ns, 0),
        spread(&polls, 0)
    ))
}

fn pairs_of(measured: &Measured, variant: Variant) -> impl Iterator<Item = &(Sample, Sample)> {
    let of = move |row: &&Paired| row.variant == variant;
    let rows = measured.variants.iter().filter(of);
    rows.flat_map(|row| &row.pairs)
}

fn hits_of(sample: &Sample) -> Result<f64> {
    let hits = sample
        .overhead
        .as_ref()
        .and_then(|o: &Value| o["hits"].as_f64());
    hits.ok_or_else(|| Error::told("the machine record of perf-gate has no overhead.hits"))
}
