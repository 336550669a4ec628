//! What observing costs at a known allocation rate, against the goals set for it, and how often probes fire.
//!
//! A probe fires per allocation area, so its cost follows the bytes allocated; the same probes are dear or
//! cheap depending on how much else the program does. Hence programs with the same objects and a
//! different amount of arithmetic between them, calibrated on this machine before anything is measured:
//! the time per object is linear in the steps, and two short runs give the line. The rate reached is
//! printed, not assumed. Both have a new space as grown as that of a program that has been up for a while; a
//! third shows how the faster one fares with a small one, which is collected far more often.
//! Hits of start-up and warm-up are taken off by a run that allocates nothing after.

use serde_json::Value;

use super::pairs::{Measured, Paired, median, spread};
use super::runner::{Program, Runner, Sample, Variant};
use crate::error::{Error, Result};

const RIVALS: [Variant; 3] = [Variant::Watched, Variant::TraceGc, Variant::Poller];
/// What bench/rate.mjs allocates per object.
const OBJECT_BYTES: f64 = 56.0;

/// A rate to reach and the wall ratio that must not be passed at it.
struct Target {
    name: &'static str,
    gb_per_s: f64,
    megabytes: f64,
    new_space: &'static str,
    goal: f64,
}

const TARGETS: [Target; 3] = [
    Target {
        name: "1 GB/s",
        gb_per_s: 1.0,
        megabytes: 1200.0,
        new_space: "grown",
        goal: 1.02,
    },
    Target {
        name: "4 GB/s",
        gb_per_s: 4.0,
        megabytes: 4400.0,
        new_space: "grown",
        goal: 1.08,
    },
    // A collection every megabyte or two: the most probe hits per byte a program can cause.
    Target {
        name: "4 GB/s, new space at its first size",
        gb_per_s: 4.0,
        megabytes: 4400.0,
        new_space: "first",
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
        let work = calibrate(runner, target)?;
        let program = rate(target, work, target.megabytes);
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
                "| {} | {} | {} | {} | {goal} | {met} |",
                target.name,
                variant.name(),
                spread(&wall, 3),
                spread(&cpu, 3)
            );
        }
        let before = hits_of(&runner.run(&rate(target, work, 0.0), Variant::Watched)?)?;
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

fn rate(target: &Target, work: u32, megabytes: f64) -> Program {
    let args = [work.to_string(), megabytes.to_string()];
    Program::new(
        "rate.mjs",
        &[args.as_slice(), &[target.new_space.to_owned()]].concat(),
    )
}

/// Steps of arithmetic per object for this rate on this machine.
fn calibrate(runner: &Runner, target: &Target) -> Result<u32> {
    let gb_per_s = target.gb_per_s;
    let wanted_ns = OBJECT_BYTES / gb_per_s;
    let cost_ns = |work: u32, megabytes: f64| -> Result<f64> {
        let mut best = f64::INFINITY;
        for _ in 0..3 {
            let sample = runner.run(&rate(target, work, megabytes), Variant::Plain)?;
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
        "| {} | {} | {} | {} | {} |",
        target.name,
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
