//! Putting the probes of a plan onto a binary.
//!
//! A process gets links of its own while few run the same binary: other processes then never even
//! see a breakpoint. A tree of many processes gets one link for all of them, filtered in the kernel
//! by process; such links cost every process that maps the binary, so they come second. Kernels
//! before 6.6 know only perf events, one a point, which see every process.

use super::kernel_side::KernelSide;
use crate::kernel::bpf::{self, Link, Point, Scope};
use crate::v8::plan::{Plan, PointKind};
use perf_event::{Builder, Counter, events::Software};
use perf_gate_ebpf::Cookie;
use std::{
    ffi::{CStr, CString},
    fs::{self, File},
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd},
};

#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    #[error("attaching {points} probes to its binary failed: {source}")]
    Multi { points: usize, source: io::Error },
    #[error("attaching a probe at file offset {offset:#x} of its binary failed: {source}")]
    PerfEvent { offset: u64, source: io::Error },
}

/// Attached probes; dropping them detaches.
#[derive(Debug, Default)]
pub struct Links {
    links: Vec<Link>,
    events: Vec<Counter>,
}

impl From<Vec<Link>> for Links {
    fn from(links: Vec<Link>) -> Self {
        Self {
            links,
            events: Vec::new(),
        }
    }
}

impl Drop for Links {
    /// Each waits for RCU grace periods of its own; side by side they share them.
    fn drop(&mut self) {
        if self.slow() {
            return;
        }
        std::thread::scope(|s| {
            for link in self.links.drain(..) {
                // Without a thread the closure, and with it the link, is dropped here.
                let _ = std::thread::Builder::new().spawn_scoped(s, move || drop(link));
            }
        });
    }
}

impl Links {
    /// Whether dropping these takes long: perf events detach one by one, 0.1 s each.
    #[must_use]
    pub fn slow(&self) -> bool {
        !self.events.is_empty()
    }
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

/// The files whose points belong together: the one with V8, and the C library beside it.
pub struct Targets<'a>(Vec<(&'a File, &'a Plan)>);

impl<'a> Targets<'a> {
    #[must_use]
    pub fn of(file: &'a File, plan: &'a Plan, libc: Option<&'a (File, Plan)>) -> Self {
        let libc = libc.map(|(file, plan)| (file, plan));
        Self(std::iter::once((file, plan)).chain(libc).collect())
    }

    /// Attaches every point.
    ///
    /// # Errors
    /// When the kernel refuses a point; then none stays attached.
    pub fn attach(&self, kernel: &KernelSide, scope: Scope) -> Result<Links, AttachError> {
        let mut out = Links::default();
        for (file, plan) in &self.0 {
            attach(kernel, file, plan, scope, &mut out)?;
        }
        Ok(out)
    }
}

fn attach(
    kernel: &KernelSide,
    file: &File,
    plan: &Plan,
    scope: Scope,
    out: &mut Links,
) -> Result<(), AttachError> {
    // The descriptor names the very file that was read, whatever its path says by now.
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
    let wide = scope == Scope::Everyone;
    // Returns first: an entry without its return would leave operands behind.
    for (program, kind) in [
        (&kernel.at_return, PointKind::Return),
        (&kernel.entry, PointKind::Entry),
    ] {
        let points = points(plan, kind, wide);
        let at_return = kind == PointKind::Return;
        if points.is_empty() {
            continue;
        }
        if kernel.multi {
            let link = bpf::uprobe_multi(program.as_fd(), &path, &points, scope, at_return);
            out.links.push(link.map_err(|source| AttachError::Multi {
                points: points.len(),
                source,
            })?);
        } else {
            for (offset, cookie) in points {
                perf_event(program.as_fd(), &path, offset, cookie, at_return, out)
                    .map_err(|source| AttachError::PerfEvent { offset, source })?;
            }
        }
    }
    Ok(())
}

fn perf_event(
    program: BorrowedFd<'_>,
    path: &CStr,
    offset: u64,
    cookie: u64,
    at_return: bool,
    out: &mut Links,
) -> io::Result<()> {
    let pmu = fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    let pmu: u32 = pmu.trim().parse().map_err(io::Error::other)?;
    let mut builder = Builder::new(Software::DUMMY);
    // perf-event2 0.7.4 has a uprobe event, but one that cannot be built. The last two are
    // `uprobe_path` and `probe_offset` of their unions (include/uapi/linux/perf_event.h).
    let attr = builder.attrs_mut();
    attr.type_ = pmu;
    attr.config = at_return.into();
    attr.config1 = path.as_ptr() as u64;
    attr.config2 = offset;
    let mut event = builder.any_pid().one_cpu(0).include_kernel().build()?;
    out.links
        .push(bpf::perf_event(program, event.as_raw_fd(), cookie)?);
    event.enable()?;
    out.events.push(event);
    Ok(())
}
