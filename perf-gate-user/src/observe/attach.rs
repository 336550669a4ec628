//! Putting the probes of a plan onto a binary.
//!
//! A process gets links of its own while few run the same binary: other processes then never even
//! see a breakpoint. A tree of many processes gets one link for all of them, filtered in the kernel
//! by process; such links cost every process that maps the binary, so they come second.

use super::{
    kernel_side::{KernelSide, Probes, chain},
    multi::{Link, MultiError, Point, Program, Scope},
};
use crate::v8::plan::{Plan, PointKind};
use aya::programs::{
    UProbe,
    uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope},
};
use perf_gate_ebpf::Cookie;
use std::{ffi::CString, fs::File, os::fd::AsRawFd as _};

#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error(transparent)]
    Multi(#[from] MultiError),
    #[error("attaching a probe at file offset {offset:#x} failed: {why}")]
    PerfEvent { offset: u64, why: String },
    #[error("the eBPF object has no program `{0}`; it does not belong to this perf-gate")]
    NoProgram(&'static str),
}

/// Attached probes; dropping them detaches.
#[derive(Debug)]
pub enum Links {
    Multi(Vec<Link>),
    PerfEvents(Vec<UProbeLink>),
}

fn points(plan: &Plan, kind: PointKind, wide: bool) -> Vec<Point> {
    plan.points
        .iter()
        .filter(|p| p.kind == kind)
        .map(|p| {
            let cookie = Cookie(p.cookie);
            let cookie = if wide { cookie.wide() } else { cookie };
            (p.offset, cookie.0)
        })
        .collect()
}

/// Whether this kernel can limit probes to one process and its threads.
#[must_use]
pub fn can_scope(kernel: &KernelSide) -> bool {
    matches!(kernel.probes, Probes::Multi { .. })
}

/// Attaches every point of `plan` to `file`.
///
/// # Errors
/// When the kernel refuses a point; then none stays attached.
pub fn attach(
    kernel: &mut KernelSide,
    file: &File,
    plan: &Plan,
    scope: Scope,
) -> Result<Links, AttachError> {
    // The descriptor names the very file that was read, whatever its path says by now.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let wide = scope == Scope::Everyone;
    let entries = points(plan, PointKind::Entry, wide);
    let returns = points(plan, PointKind::Return, wide);
    match &kernel.probes {
        Probes::Multi { entry, at_return } => multi(entry, at_return, &path, &entries, &returns, scope),
        Probes::PerfEvents => {
            let mut links = Vec::new();
            perf_events(kernel, "on_return", &path, &returns, &mut links)?;
            perf_events(kernel, "on_entry", &path, &entries, &mut links)?;
            Ok(Links::PerfEvents(links))
        }
    }
}

fn multi(
    entry: &Program,
    at_return: &Program,
    path: &str,
    entries: &[Point],
    returns: &[Point],
    scope: Scope,
) -> Result<Links, AttachError> {
    let path = CString::new(path).unwrap_or_default();
    let mut links = Vec::with_capacity(2);
    // Returns first: an entry without its return would leave operands behind.
    for (program, points, ret) in [(at_return, returns, true), (entry, entries, false)] {
        if !points.is_empty() {
            links.push(program.attach(&path, points, scope, ret)?);
        }
    }
    Ok(Links::Multi(links))
}

fn perf_events(
    kernel: &mut KernelSide,
    name: &'static str,
    path: &str,
    points: &[Point],
    links: &mut Vec<UProbeLink>,
) -> Result<(), AttachError> {
    let program: &mut UProbe = kernel
        .ebpf
        .program_mut(name)
        .and_then(|p| p.try_into().ok())
        .ok_or(AttachError::NoProgram(name))?;
    for &(offset, cookie) in points {
        let failed = |e: &dyn std::error::Error| AttachError::PerfEvent {
            offset,
            why: chain(e),
        };
        let at = UProbeAttachPoint {
            location: UProbeAttachLocation::AbsoluteOffset(offset),
            cookie: Some(cookie),
        };
        let id = program
            .attach(at, path, UProbeScope::AllProcesses)
            .map_err(|e| failed(&e))?;
        links.push(program.take_link(id).map_err(|e| failed(&e))?);
    }
    Ok(())
}
