//! `cargo xtask symbols NODE...`: the probe plan of node binaries, as a table of what would be probed
//! where. It is an example and no chore of xtask's own, because xtask must build without the library:
//! the library refuses to build while the eBPF object is stale, and xtask is what renews it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use perf_gate::elf::{Error, Image};
use perf_gate::v8::{Plan, PointKind, locate};

fn main() -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for file in std::env::args_os().skip(1).map(PathBuf::from) {
        match show(&file) {
            Ok(true) => {}
            Ok(false) => {
                eprintln!(
                    "{}: no V8 in it; name the node binary itself",
                    file.display()
                );
                code = ExitCode::FAILURE;
            }
            Err(why) => {
                eprintln!("{}: {why}", file.display());
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}

/// Whether there was V8, in the file or in a library it loads.
fn show(file: &Path) -> Result<bool, Error> {
    let image = Image::open(file)?;
    let mut plans: Vec<Plan> = Plan::resolve(&image)?.into_iter().collect();
    for library in locate::libraries(&image, file, Path::new("/"), None, &locate::V8_NAMES) {
        plans.extend(Plan::resolve(&library.image)?);
    }
    for plan in &plans {
        print(plan);
    }
    Ok(!plans.is_empty())
}

fn print(plan: &Plan) {
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
    println!(
        "{}: node {}, V8 {}, build id {}",
        plan.source.display(),
        known(&plan.node_version),
        known(&plan.v8_version),
        if plan.build_id.is_empty() {
            "none"
        } else {
            &plan.build_id
        },
    );
    for point in &plan.points {
        println!(
            "  {:<12} {:<17} {:<6} {:#010x}{} {}",
            point.lane.name(),
            format!("{:?}", point.op),
            match point.kind {
                PointKind::Entry => "entry",
                PointKind::Return => "return",
            },
            point.offset,
            if point.slow { " slow" } else { "" },
            point.symbol,
        );
    }
    for (lane, why) in &plan.blind {
        println!("  {:<12} blind: {why}", lane.name());
    }
    for (lane, why) in &plan.doubts {
        println!("  {:<12} doubt: {why}", lane.name());
    }
}
