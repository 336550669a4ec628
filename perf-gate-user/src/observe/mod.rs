//! Observing: launch suspended, attach, follow the tree, drain, collect.
//!
//! [`watch`] is the whole life of a run. The child is forked first and waits at a gate while the
//! kernel side loads; it is released once the process-tree programs sit; its new program is held at its
//! start and goes on once the probes sit. Then one loop serves signals, ends, execs and the
//! timeline until the tree is gone.

mod attach;
mod collect;
mod counters;
mod detach;
mod images;
pub mod kernel_side;
pub mod marks;
mod pidfd;
pub mod proof;
mod rss;
mod tree;
mod windows;

use crate::{
    kernel,
    model::{End, Run},
    target::{Hold, Inherited, Launch, LaunchError, Reaper, Signals, exit, launch, reap, signals},
};
use counters::Counters;
use images::Images;
use kernel_side::{KernelError, KernelSide};
use marks::MarkFile;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use perf_gate_ebpf::{Config, GcEvent};
use std::{
    os::fd::AsFd as _,
    path::PathBuf,
    time::{Duration, Instant, SystemTime},
};
use tree::Tree;

/// Time between two looks at the memory of running nodes: short at first, so that short programs have
/// samples, then longer.
const SAMPLE_FIRST: Duration = Duration::from_millis(10);
const SAMPLE_LATER: Duration = Duration::from_millis(50);
const SAMPLE_SOON_ENDS: Duration = Duration::from_secs(5);
/// Collections kept for the timeline; later ones are counted as dropped.
const TIMELINE_KEPT: usize = 50_000;

#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Signals(#[from] signals::SignalError),
    #[error(transparent)]
    Reaper(#[from] reap::ReapError),
    #[error(
        "/proc is missing or shows another PID namespace, so processes cannot be looked at; {}",
        kernel::PROC_ADVICE
    )]
    ForeignProc,
    #[error("waiting for events failed: {0}")]
    Poll(nix::Error),
}

impl ObserveError {
    /// perf-gate's exit code.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Launch(e) => e.exit_code(),
            _ => exit::CANNOT_VOUCH,
        }
    }
}

/// What to observe and how.
pub struct Request {
    pub launch: Launch,
    /// Wait for the whole tree, not only for the direct child.
    pub wait_tree: bool,
    /// Directory of resolved probe plans; `None`: they are resolved anew.
    pub plans: Option<PathBuf>,
    pub prover: proof::Prover,
    /// When perf-gate started, by the wall and by the monotonic clock.
    pub started: SystemTime,
    pub start: Instant,
}

/// Runs the program under observation.
///
/// # Errors
/// When it cannot be launched or the kernel side cannot be set up; the program has then not run.
pub fn watch(request: Request, inherited: &Inherited) -> Result<Run, ObserveError> {
    if !kernel::proc_is_ours() {
        return Err(ObserveError::ForeignProc);
    }
    let mut signals = Signals::new()?;
    let mut reaper = Reaper::new()?;
    let mut to_launch = request.launch;
    // Without the file, marks are inert and everything else works.
    let marks = MarkFile::make(to_launch.identity.ids())
        .inspect_err(|e| log::warn!("windows cannot be marked: no temporary file: {e}"))
        .ok();
    to_launch.env.extend(marks.as_ref().map(MarkFile::variable));
    to_launch
        .leftovers
        .extend(marks.iter().flat_map(MarkFile::paths));
    let mut suspended = launch::spawn(&to_launch, inherited)?;
    let hold = suspended.take_hold();
    if hold.is_none() {
        log::info!("programs cannot be held at their start unseen; they are stopped by a signal");
    }
    let child = suspended.pid();

    // Reading the kernel's types and loading the programs take about as long: side by side.
    let (side, task_pid_offset) = std::thread::scope(|s| {
        let offset = s.spawn(kernel::btf::task_pid_offset);
        (KernelSide::load(), offset.join())
    });
    let mut side = side?;
    let mut doubts = Vec::new();
    let task_pid_offset = match task_pid_offset {
        Ok(Ok(offset)) => offset,
        Ok(Err(e)) => {
            doubts.push(format!("children are not followed: {e}"));
            0
        }
        Err(_) => {
            doubts.push("children are not followed: reading the kernel's types failed".into());
            0
        }
    };
    let (ns_dev, ns_ino) = kernel_side::pid_namespace();
    let config = Config {
        ns_dev,
        ns_ino,
        root_pid: child,
        task_pid_offset,
        stop_at_exec: u32::from(hold.is_none()),
        pad: 0,
        nonce: marks.as_ref().map_or(0, |m| m.nonce),
    };
    side.config.set(0, config, 0).map_err(KernelError::from)?;
    side.follow()?;
    let mut tree = Tree::new(Some(Counters::open(child)), hold.is_some());
    tree.doubts = doubts;
    let mut images = Images::new(request.plans, request.prover);
    let running = suspended.release()?.wait_exec()?;

    let mut run_loop = Loop {
        side: &mut side,
        tree: &mut tree,
        images: &mut images,
        signals: &mut signals,
        reaper: &mut reaper,
        hold,
        start: request.start,
        released_after: None,
        events: Vec::new(),
        thinned: 0,
        root_end: None,
    };
    run_loop.run(&running, request.wait_tree)?;
    let Loop {
        released_after,
        events,
        thinned,
        root_end,
        ..
    } = run_loop;

    tree.close(&mut side, &mut images);
    let ops = side.op_counts()?;
    let losses = side.losses.get(&0, 0).map_err(KernelError::from)?;
    let began_ns = tree
        .all
        .first()
        .map_or(0, |w| w.last.map_or(0, |p| p.born_ns));
    let collected = collect::collect(&tree, &images, &ops, losses, &events, began_ns);
    let run = Run {
        command: to_launch
            .argv
            .iter()
            .map(|a| a.to_string_lossy().into_owned())
            .collect(),
        started: request.started,
        kernel: kernel_release(),
        arch: std::env::consts::ARCH.to_owned(),
        wall_ns: request.start.elapsed().as_nanos() as u64,
        processes: collected.processes,
        windows: collected.windows,
        lanes: collected.lanes,
        doubts: collected.doubts,
        timeline: collected.timeline,
        overhead: crate::model::Overhead {
            hits: collected.hits,
            start_to_release_ns: released_after.unwrap_or_default().as_nanos() as u64,
            timeline_dropped: losses.timeline + thinned,
        },
        end: root_end.unwrap_or(End::StillRunning),
    };
    Ok(run)
}

struct Loop<'a> {
    side: &'a mut KernelSide,
    tree: &'a mut Tree,
    images: &'a mut Images,
    signals: &'a mut Signals,
    reaper: &'a mut Reaper,
    /// `None` once no process is left that it could hold.
    hold: Option<Hold>,
    start: Instant,
    released_after: Option<Duration>,
    events: Vec<GcEvent>,
    thinned: u64,
    root_end: Option<End>,
}

impl Loop<'_> {
    fn run(&mut self, child: &launch::Running, wait_tree: bool) -> Result<(), ObserveError> {
        let began = Instant::now();
        let mut next_sample = began + SAMPLE_FIRST;
        let mut stop = false;
        loop {
            self.drain();
            self.let_go();
            self.reap(child);
            let done = self.root_end.is_some() && (!wait_tree || stop || !self.reaper.alive());
            if done {
                self.drain();
                return Ok(());
            }
            let timeout = next_sample.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(timeout + Duration::from_millis(1))
                .unwrap_or(PollTimeout::from(50u8));
            // The timeline wakes nobody: it is emptied whenever something else does.
            let mut fds = [
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
                PollFd::new(self.side.control.as_fd(), PollFlags::POLLIN),
            ];
            let polled = match &self.hold {
                Some(hold) => {
                    let [a, b] = fds;
                    poll(
                        &mut [a, b, PollFd::new(hold.as_fd(), PollFlags::POLLIN)],
                        timeout,
                    )
                }
                None => poll(&mut fds, timeout),
            };
            match polled {
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(e) => return Err(ObserveError::Poll(e)),
            }
            for event in self.signals.drain() {
                if self.root_end.is_some() {
                    stop |= event.asks_to_stop();
                } else if let Some(signal) = event.to_forward(child.pid()) {
                    child.signal(signal);
                }
            }
            if Instant::now() >= next_sample {
                self.tree.overdue(self.side, self.images);
                self.tree.sample(self.side);
                let every = if began.elapsed() < SAMPLE_SOON_ENDS {
                    SAMPLE_FIRST
                } else {
                    SAMPLE_LATER
                };
                next_sample = Instant::now() + every;
            }
        }
    }

    fn drain(&mut self) {
        for c in self.side.drain_control() {
            self.tree.on_control(&c, self.side, self.images);
            if c.stopped != 0 && self.released_after.is_none() {
                self.released_after = Some(self.start.elapsed());
            }
        }
        for e in self.side.drain_timeline() {
            if self.events.len() < TIMELINE_KEPT {
                self.events.push(e);
            } else {
                self.thinned += 1;
            }
        }
    }

    /// Attaches to the programs that are held, and lets them go.
    fn let_go(&mut self) {
        while let Some(hold) = &mut self.hold
            && let Some(held) = hold.waiting()
        {
            // What it is was told before it came to wait.
            self.drain();
            self.tree.on_held(held.pid, self.side, self.images);
            if let Some(hold) = &self.hold {
                hold.release(held);
            }
            self.released_after
                .get_or_insert_with(|| self.start.elapsed());
        }
        if self.hold.as_ref().is_some_and(Hold::is_over) {
            self.hold = None;
        }
    }

    fn reap(&mut self, child: &launch::Running) {
        while let Some(pid) = self.reaper.peek() {
            // What the kernel side says of its end came before; it is to be settled while the process
            // can still be asked for its clock.
            self.drain();
            let Some(r) = self.reaper.take(pid) else {
                break;
            };
            if r.pid == child.pid() {
                self.root_end = Some(r.end);
            }
            self.tree.on_reaped(r.pid, r.end, r.usage.peak_rss_bytes);
        }
    }
}

/// The running kernel's release.
#[must_use]
pub fn kernel_release() -> String {
    nix::sys::utsname::uname()
        .map(|u| u.release().to_string_lossy().into_owned())
        .unwrap_or_default()
}
