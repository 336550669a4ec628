//! Kernel counters of one process over its whole life: what it had when it was first seen (from
//! `/proc`) plus what perf events counted since. The events cover its threads, not its children, so
//! that every process of the tree has figures of its own.

use crate::model;
use perf_event::{
    Builder, Counter,
    events::{Event, Hardware, Software},
};
use procfs::process::Process;
use std::io;

/// Open counters of one process. Closing them is all it takes to stop.
pub struct Counters {
    page_faults: io::Result<Counter>,
    context_switches: io::Result<Counter>,
    task_clock: io::Result<Counter>,
    instructions: io::Result<Counter>,
    cycles: io::Result<Counter>,
    before: Before,
}

/// What the process had used when the counters were opened.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    page_faults: Option<u64>,
    context_switches: Option<u64>,
    task_clock_ns: Option<u64>,
}

impl Before {
    fn read(pid: u32) -> Self {
        let Ok(process) = Process::new(pid as i32) else {
            return Self::default();
        };
        let stat = process.stat().ok();
        let status = process.status().ok();
        Self {
            page_faults: stat.map(|s| s.minflt + s.majflt),
            context_switches: status
                .and_then(|s| Some(s.voluntary_ctxt_switches? + s.nonvoluntary_ctxt_switches?)),
            task_clock_ns: process.schedstat().ok().map(|s| s.sum_exec_runtime),
        }
    }
}

fn open(event: impl Event, pid: u32) -> io::Result<Counter> {
    let mut counter = Builder::new(event)
        .observe_pid(pid as i32)
        .any_cpu()
        .include_kernel()
        .inherit(true)
        .inherit_thread(true)
        .enabled(true)
        .build()?;
    counter.enable()?;
    Ok(counter)
}

impl Counters {
    /// Opens what the machine has; each counter that cannot be opened says why when read.
    #[must_use]
    pub fn open(pid: u32) -> Self {
        Self {
            before: Before::read(pid),
            page_faults: open(Software::PAGE_FAULTS, pid),
            context_switches: open(Software::CONTEXT_SWITCHES, pid),
            task_clock: open(Software::TASK_CLOCK, pid),
            instructions: open(Hardware::INSTRUCTIONS, pid),
            cycles: open(Hardware::CPU_CYCLES, pid),
        }
    }

    /// The figures so far, each `None` named with its reason.
    pub fn read(&mut self) -> model::Counters {
        let mut out = model::Counters::default();
        let mut unmeasured = Vec::new();
        let mut one = |name: &str, counter: &mut io::Result<Counter>, before: Option<u64>| {
            let why = match (counter, before) {
                (Err(e), _) => explain(e),
                (Ok(_), None) => "what it had used before it was seen cannot be read".to_owned(),
                (Ok(c), Some(before)) => match c.read() {
                    Ok(n) => return Some(before + n),
                    Err(e) => e.to_string(),
                },
            };
            unmeasured.push((name.to_owned(), why));
            None
        };
        let b = self.before;
        out.page_faults = one("page_faults", &mut self.page_faults, b.page_faults);
        out.context_switches = one(
            "context_switches",
            &mut self.context_switches,
            b.context_switches,
        );
        out.task_clock_ns = one("task_clock_ns", &mut self.task_clock, b.task_clock_ns);
        out.instructions = one("instructions", &mut self.instructions, Some(0));
        out.cycles = one("cycles", &mut self.cycles, Some(0));
        out.unmeasured = unmeasured;
        out
    }
}

/// CPU time of a whole process since its fork, dead threads included, up to now; also of one that has
/// ended and was not reaped. perf's task clock leaves out 3 to 5 us of every switch, this does not.
#[must_use]
pub fn cpu_time_ns(pid: u32) -> Option<u64> {
    /// `CPUCLOCK_SCHED` (include/linux/posix-timers_types.h).
    const SCHED: libc::clockid_t = 2;
    let clock = (!(pid as libc::clockid_t) << 3) | SCHED;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to our own memory.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return None;
    }
    Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn explain(e: &io::Error) -> String {
    match e.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => {
            format!("this machine has no such counter ({e})")
        }
        Some(libc::EACCES | libc::EPERM) => format!("not allowed ({e})"),
        _ => e.to_string(),
    }
}
