//! `perf-gate doctor`: what works on this machine and for one node binary.
//!
//! The machine's rows come from [`kernel::preflight`]. A binary is looked at as `watch` would: its
//! probe plan is resolved, from libnode where V8 is not in the executable itself, and every lane gets
//! a row. Nothing is run and nothing is stored.

use std::{
    io::{self, Write},
    path::Path,
    time::SystemTime,
};

use super::args;
use crate::{
    elf::{self, Image},
    judge::{CANNOT_VOUCH, DecidedBy, Verdict},
    kernel::{self, Check, Status},
    model::Lane,
    report::{
        checks::Checks,
        human::Human,
        ndjson::{Header, Record},
        output::OutputError,
        text,
    },
    v8::{Plan, locate},
};

/// An input file is missing or malformed.
const BAD_INPUT: u8 = 66;

#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    #[error("--node {path}: {source}")]
    Node { path: String, source: elf::Error },
    #[error(
        "--node {0}: there is no such file; give the path of a node binary, such as $(which node)"
    )]
    Missing(String),
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl DoctorError {
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Node { .. } | Self::Missing(_) => BAD_INPUT,
            Self::Output(e) => e.exit_code(),
        }
    }
}

/// Looks and prints; the exit code is the answer.
#[must_use]
pub fn run(args: &args::Doctor) -> u8 {
    // The record takes standard output for itself.
    let beside = args.ndjson.as_deref() == Some(Path::new("-"));
    let mut out = match beside {
        true => Human::stderr(args.no_color),
        false => Human::stdout(args.no_color),
    };
    look(args, &mut out).unwrap_or_else(|e| {
        super::complain(&e);
        e.exit_code()
    })
}

fn look(args: &args::Doctor, out: &mut Human) -> Result<u8, DoctorError> {
    // Before anything is printed: bad input gets one line and nothing else.
    let node = match &args.node {
        Some(path) => Some((
            text::clean(&path.to_string_lossy()).into_owned(),
            examine(path)?,
        )),
        None => None,
    };
    let record = args.ndjson.as_deref().map(begin).transpose()?;
    let mut parts = vec![("machine".to_owned(), kernel::preflight())];
    parts.extend(node);
    let verdict = verdict(&parts);
    if !args.quiet {
        // A closed terminal takes nothing from the exit code.
        let _ = print(&parts, &verdict, out);
    }
    if let Some(mut record) = record {
        for (about, rows) in &parts {
            rows.iter().for_each(|row| record.check(about, row));
        }
        record.close(&verdict, &[])?;
    }
    Ok(verdict.code)
}

fn begin(path: &Path) -> Result<Record, OutputError> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let head = Header {
        command: &["perf-gate".to_owned(), "doctor".to_owned()],
        kernel: release.trim(),
        arch: std::env::consts::ARCH,
        started: SystemTime::now(),
    };
    Record::begin(path, None, &head)
}

fn print(parts: &[(String, Vec<Check>)], verdict: &Verdict, out: &mut Human) -> io::Result<()> {
    let style = Checks {
        width: out.width,
        color: true,
    };
    for (about, rows) in parts {
        style.write(about, rows, out)?;
        writeln!(out)?;
    }
    match verdict.pass {
        true => writeln!(out, "watch works here"),
        false => writeln!(
            out,
            "watch does not work here: {}",
            verdict.reasons.join("; ")
        ),
    }
}

fn verdict(parts: &[(String, Vec<Check>)]) -> Verdict {
    let rows = parts.iter().flat_map(|(_, rows)| rows);
    let failed = rows.filter(|r| r.status == Status::Fail);
    let reasons: Vec<_> = failed.map(|r| format!("{}: {}", r.name, r.found)).collect();
    Verdict {
        pass: reasons.is_empty(),
        code: if reasons.is_empty() { 0 } else { CANNOT_VOUCH },
        decided_by: DecidedBy::Detector,
        reasons,
    }
}

fn examine(path: &Path) -> Result<Vec<Check>, DoctorError> {
    let fault = |source: elf::Error| {
        let path = text::clean(&path.to_string_lossy()).into_owned();
        match source {
            elf::Error::Io(e) if e.kind() == io::ErrorKind::NotFound => DoctorError::Missing(path),
            source => DoctorError::Node { path, source },
        }
    };
    let image = Image::open(path).map_err(fault)?;
    if let Some(plan) = Plan::resolve(&image).map_err(fault)? {
        return Ok(describe(path, &plan));
    }
    // The linker resolves links before it looks for what lies beside the program.
    let exe = path.canonicalize().map_err(|e| fault(e.into()))?;
    let library_path = std::env::var_os("LD_LIBRARY_PATH");
    for library in locate::libraries(
        &image,
        &exe,
        Path::new("/"),
        library_path.as_deref(),
        &locate::V8_NAMES,
    ) {
        if let Some(plan) = Plan::resolve(&library.image).map_err(fault)? {
            return Ok(describe(&library.path, &plan));
        }
    }
    Ok(vec![Check::fail(
        "V8",
        "not found in it, nor in a library that it names",
        "name the node binary itself (not a wrapper such as a version manager's script)",
    )])
}

fn describe(holder: &Path, plan: &Plan) -> Vec<Check> {
    let or = |value: &Option<String>, todo: &str, name| match value {
        Some(value) => Check::ok(name, value.as_str()),
        None => Check::warn(name, "unknown", todo),
    };
    let mut rows = vec![
        Check::ok("V8 is in", holder.to_string_lossy()),
        or(&plan.node_version, "reports will not name it", "node"),
        or(
            &plan.v8_version,
            "names of reasons and spaces may be wrong; use a build that exports its symbols",
            "V8",
        ),
        match plan.build_id.as_str() {
            "" => Check::warn(
                "build id",
                "none",
                "plans and proofs for it cannot be kept: each run takes longer to start",
            ),
            id => Check::ok("build id", id),
        },
    ];
    rows.extend(Lane::ALL.map(|lane| lane_row(plan, lane)));
    let slow = plan.points.iter().filter(|p| p.slow).count();
    if slow > 0 {
        let found = format!("{slow} of {} are single-stepped", plan.points.len());
        rows.push(Check::warn(
            "probe points",
            found,
            "such a hit costs 10 µs, not 0.5; nothing to do",
        ));
    } else {
        rows.push(Check::ok("probe points", plan.points.len().to_string()));
    }
    rows
}

fn lane_row(plan: &Plan, lane: Lane) -> Check {
    let name = match lane {
        Lane::Isolate => "lane isolate",
        Lane::Gc => "lane gc",
        Lane::Pause => "lane pause",
        Lane::Incremental => "lane incremental",
        Lane::Minor => "lane minor",
        Lane::External => "lane external",
        Lane::Store => "lane store",
        Lane::Strings => "lane strings",
        Lane::Large => "lane large",
        Lane::Pages => "lane pages",
        Lane::Bytes => "lane bytes",
        Lane::Live => "lane live",
        Lane::Window => "lane window",
    };
    let points = plan.points.iter().filter(|p| p.lane == lane).count();
    let official = "use a build with its symbols, such as those of nodejs.org";
    if let Some(why) = plan.blind_in(lane) {
        return match lane {
            // Without births of isolates nothing can be told apart.
            Lane::Isolate => Check::fail(name, format!("blind: {why}"), official),
            _ => Check::warn(
                name,
                format!("blind: {why}"),
                format!("its figures will be missing and a budget on it exits 2; {official}"),
            ),
        };
    }
    if let Some((_, why)) = plan.doubts.iter().find(|(l, _)| *l == lane) {
        return Check::warn(
            name,
            format!("{}, doubtful: {why}", text::plural(points as u64, "point")),
            "watch proves it with a control before it is trusted",
        );
    }
    if lane == Lane::Window {
        return Check::ok(name, "points in the program's C library");
    }
    Check::ok(name, text::plural(points as u64, "point"))
}
