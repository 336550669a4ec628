//! Project chores: `cargo xtask CHORE`. Each chore lives in a module of its own; this file parses the
//! command line, calls one, and turns an error into one line and exit code 1.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod bench;
mod demo;
mod ebpf;
mod error;
mod nodes;
mod run;
mod soak;
#[path = "../../perf-gate-user/src/bpf/sources.rs"]
mod sources;
mod test;
mod vm;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Project chores")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Build the eBPF object that is committed beside perf-gate-user's sources
    BuildEbpf {
        /// Rebuild aside and compare instead of writing
        #[arg(long, conflicts_with = "out")]
        check: bool,
        /// Write object and provenance here instead
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Fetch Node binaries into a cache and print their paths
    Nodes {
        /// Versions such as 22.23.5, or deb18 for Debian's libnode; the whole matrix by default
        #[arg(value_name = "VERSION")]
        versions: Vec<String>,
    },
    /// Check everything: format, lints, unit tests, the eBPF object, end to end on every Node
    Test,
    /// Build, and watch a small program that allocates, leaks and uses a worker
    Demo,
    /// Measure what observing costs, in paired runs, as Markdown tables
    Bench(bench::Options),
    /// Do what the end-to-end tests do, hundreds of times
    Soak(soak::Options),
    /// Print the probe plan of node binaries
    Symbols {
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<PathBuf>,
    },
    /// Watch a program on other kernels, in an emulated machine
    Vm(vm::Options),
}

fn main() -> ExitCode {
    let done = match Cli::parse().chore {
        Chore::BuildEbpf { check: true, .. } => ebpf::check().map(drop),
        Chore::BuildEbpf { out, .. } => ebpf::build(out.as_deref()).map(drop),
        Chore::Nodes { versions } => nodes::print(&versions),
        Chore::Test => test::test(),
        Chore::Demo => demo::demo(),
        Chore::Bench(options) => bench::bench(&options),
        Chore::Soak(options) => soak::soak(&options),
        Chore::Symbols { nodes } => test::symbols(&nodes),
        Chore::Vm(options) => vm::vm(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why}");
            ExitCode::FAILURE
        }
    }
}
