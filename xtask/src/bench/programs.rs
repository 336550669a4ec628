//! What observing costs whole programs: one that does nearly nothing but allocate, and one that does not
//! allocate at all, beside the two ways in which Node itself reports collections.

use super::pairs::{Measured, spread};
use super::runner::{Program, Runner, Variant};
use crate::error::Result;

const RIVALS: [Variant; 3] = [Variant::Watched, Variant::TraceGc, Variant::Observer];

pub fn measure(runner: &Runner, pairs: u32) -> Result<()> {
    println!("| program | observed by | wall: median (range) | CPU: median (range) |");
    println!("|---|---|---|---|");
    for (name, script) in [("allocation-heavy", "churn.mjs"), ("idle heap", "idle.mjs")] {
        let program = Program::new(script, &[]);
        let measured = Measured::run(runner, &program, &RIVALS, pairs)?;
        for (variant, wall, cpu) in measured.ratios() {
            println!(
                "| {name} | {} | {} | {} |",
                variant.name(),
                spread(&wall, 3),
                spread(&cpu, 3)
            );
        }
    }
    Ok(())
}
