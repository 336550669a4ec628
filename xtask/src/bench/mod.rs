//! `bench`: what observing costs, and how soon perf-gate gets out of the way.
//!
//! Machines drift, so every observed run is paired with an unobserved one right before it and only the
//! ratio of the two counts; the median of many ratios is printed with the extremes, next to the ratio of
//! unobserved runs among themselves, which is the noise any other figure has to be read against. Costs are
//! those of the program itself, told by itself (bench/last-words.mjs); the time before its release and
//! after its exit is measured apart. The rivals run under the same regime. Three sections: whole programs,
//! programs that allocate at a known rate (with the goals set for them), and perf-gate itself.

mod itself;
mod pairs;
mod programs;
mod rates;
mod runner;

use crate::error::Result;
use runner::Runner;

#[derive(clap::Args)]
pub struct Options {
    /// Paired runs of each kind
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Node version to run on
    #[arg(long, default_value = "22.23.5")]
    node: String,
    /// Sections to run, all by default
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SECTION")]
    only: Vec<Section>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Section {
    /// Cost of whole programs, beside the rivals that count collections
    Programs,
    /// Cost at 1 and 4 GB allocated a second, beside the rivals that follow the heap; probe hits
    Rates,
    /// Time before release and after exit, and memory
    Itself,
}

pub fn bench(options: &Options) -> Result<()> {
    let runner = Runner::new(&options.node)?;
    let wanted = |section| options.only.is_empty() || options.only.contains(&section);
    println!(
        "Node {}, {} pairs, ratios to an unobserved run right before",
        options.node, options.pairs
    );
    if wanted(Section::Programs) {
        println!();
        programs::measure(&runner, options.pairs)?;
    }
    if wanted(Section::Rates) {
        println!();
        rates::measure(&runner, options.pairs)?;
    }
    if wanted(Section::Itself) {
        println!();
        itself::measure(&runner, options.pairs)?;
    }
    Ok(())
}
