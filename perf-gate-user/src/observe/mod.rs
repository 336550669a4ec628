//! Observing: launch suspended, attach, follow the tree, drain, collect.
//!
//! A [`Session`] owns everything attached and runs one program after another. Each is forked and waits
//! at a gate; it is released once the process-tree programs sit; its new program is held at its start
//! and goes on once the probes sit. Then one loop serves signals, ends, execs, questions and the
//! timeline until its tree is gone. At the end the session is closed and folded into one [`Run`].

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
mod view;
mod windows;

pub use view::{Speaker, View, space_name};

use crate::{
    kernel,
    model::{End, Run},
    target::{Hold, Inherited, Launch, LaunchError, Reaper, Signals, exit, launch, reap, signals},
};
use counters::Counters;
use images::Images;
use kernel_side::{KernelError, KernelSide};
use marks::MarkFile;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::Signal,
};
use perf_gate_ebpf::{Config, GcEvent};
use std::{
    ffi::OsString,
    io,
    os::fd::{AsFd, BorrowedFd},
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

/// How to observe.
pub struct Request {
    /// Directory of resolved probe plans; `None`: they are resolved anew.
    pub plans: Option<PathBuf>,
    pub prover: proof::Prover,
    /// When perf-gate started, by the wall and by the monotonic clock.
    pub started: SystemTime,
    pub start: Instant,
}

/// When the observation of one program is over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Until {
    /// Its whole tree has ended, not only itself.
    pub tree: bool,
    /// Nothing of it may run longer; what does is killed.
    pub deadline: Option<Instant>,
}

/// How a program's part of the session ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub end: End,
    /// It was killed at its deadline.
    pub timed_out: bool,
    /// We were asked to stop (a signal) while it ran.
    pub asked_to_stop: bool,
}

/// Somebody who answers questions that a watched program asks while it runs.
pub trait Desk {
    /// What to tell the program, and which files beside the marker's it needs; `marks` is its folder.
    ///
    /// # Errors
    /// When its files cannot be made.
    fn open(&mut self, marks: &MarkFile) -> io::Result<()>;
    /// Readable when a question came.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
    fn serve(&mut self, view: &mut View<'_>);
}

/// Everything attached, for one program after another.
pub struct Session {
    side: KernelSide,
    tree: Tree,
    images: Images,
    signals: Signals,
    reaper: Reaper,
    task_pid_offset: u32,
    started: SystemTime,
    start: Instant,
    released_after: Option<Duration>,
    events: Vec<GcEvent>,
    thinned: u64,
}

impl Session {
    /// Loads the kernel side.
    ///
    /// # Errors
    /// When it cannot be set up here.
    pub fn open(request: Request) -> Result<Self, ObserveError> {
        if !kernel::proc_is_ours() {
            return Err(ObserveError::ForeignProc);
        }
        let signals = Signals::new()?;
        let reaper = Reaper::new()?;
        // Reading the kernel's types and loading the programs take about as long: side by side.
        let (side, task_pid_offset) = std::thread::scope(|s| {
            let offset = s.spawn(kernel::btf::task_pid_offset);
            (KernelSide::load(), offset.join())
        });
        let mut tree = Tree::new();
        let task_pid_offset = match task_pid_offset {
            Ok(Ok(offset)) => offset,
            Ok(Err(e)) => {
                tree.doubts.push(format!("children are not followed: {e}"));
                0
            }
            Err(_) => {
                tree.doubts
                    .push("children are not followed: reading the kernel's types failed".into());
                0
            }
        };
        Ok(Self {
            side: side?,
            tree,
            images: Images::new(request.plans, request.prover),
            signals,
            reaper,
            task_pid_offset,
            started: request.started,
            start: request.start,
            released_after: None,
            events: Vec::new(),
            thinned: 0,
        })
    }

    /// Launches a program and observes it to its end.
    ///
    /// # Errors
    /// When it cannot be launched or events cannot be waited for.
    pub fn run(
        &mut self,
        mut launch: Launch,
        inherited: &Inherited,
        until: Until,
        mut desk: Option<&mut dyn Desk>,
    ) -> Result<Ended, ObserveError> {
        // Without the file, marks are inert and everything else works.
        let marks = MarkFile::make(launch.identity.ids())
            .inspect_err(|e| log::warn!("windows cannot be marked: no temporary file: {e}"))
            .ok();
        if let (Some(desk), Some(marks)) = (&mut desk, &marks)
            && let Err(e) = desk.open(marks)
        {
            log::warn!("questions of the program cannot be answered: {e}");
        }
        launch.env.extend(marks.as_ref().map(MarkFile::variable));
        launch
            .leftovers
            .extend(marks.iter().flat_map(MarkFile::paths));
        let mut suspended = launch::spawn(&launch, inherited)?;
        let hold = suspended.take_hold();
        if hold.is_none() {
            log::info!(
                "programs cannot be held at their start unseen; they are stopped by a signal"
            );
        }
        let child = suspended.pid();
        let (ns_dev, ns_ino) = kernel_side::pid_namespace();
        let config = Config {
            ns_dev,
            ns_ino,
            root_pid: child,
            task_pid_offset: self.task_pid_offset,
            stop_at_exec: u32::from(hold.is_none()),
            pad: 0,
            nonce: marks.as_ref().map_or(0, |m| m.nonce),
        };
        self.side
            .config
            .set(0, config, 0)
            .map_err(KernelError::from)?;
        self.side.follow()?;
        self.tree
            .expect(Some(Counters::open(child)), hold.is_some());
        let running = suspended.release()?.wait_exec()?;
        let mut run_loop = Loop {
            session: self,
            hold,
            desk,
            root_end: None,
            asked: false,
            stop: false,
            timed_out: false,
        };
        run_loop.run(&running, until)?;
        Ok(Ended {
            end: run_loop.root_end.unwrap_or(End::StillRunning),
            timed_out: run_loop.timed_out,
            asked_to_stop: run_loop.asked,
        })
    }

    /// Detaches everything and folds what was seen.
    ///
    /// # Errors
    /// When the kernel side's totals cannot be read.
    pub fn close(self, command: &[OsString], end: End) -> Result<Run, ObserveError> {
        let Self {
            mut side,
            mut tree,
            mut images,
            ..
        } = self;
        tree.close(&mut side, &mut images);
        let ops = side.op_counts()?;
        let losses = side.losses.get(&0, 0).map_err(KernelError::from)?;
        let began_ns = tree
            .all
            .first()
            .map_or(0, |w| w.last.map_or(0, |p| p.born_ns));
        let collected = collect::collect(&tree, &images, &ops, losses, &self.events, began_ns);
        Ok(Run {
            command: command
                .iter()
                .map(|a| a.to_string_lossy().into_owned())
                .collect(),
            started: self.started,
            kernel: kernel_release(),
            arch: std::env::consts::ARCH.to_owned(),
            wall_ns: self.start.elapsed().as_nanos() as u64,
            processes: collected.processes,
            windows: collected.windows,
            lanes: collected.lanes,
            doubts: collected.doubts,
            timeline: collected.timeline,
            overhead: crate::model::Overhead {
                hits: collected.hits,
                start_to_release_ns: self.released_after.unwrap_or_default().as_nanos() as u64,
                timeline_dropped: losses.timeline + self.thinned,
            },
            end,
        })
    }
}

struct Loop<'a, 'd> {
    session: &'a mut Session,
    /// `None` once no process is left that it could hold.
    hold: Option<Hold>,
    desk: Option<&'d mut dyn Desk>,
    root_end: Option<End>,
    /// A signal asked us to end.
    asked: bool,
    /// One did when the program itself had ended already.
    stop: bool,
    timed_out: bool,
}

impl Loop<'_, '_> {
    fn run(&mut self, child: &launch::Running, until: Until) -> Result<(), ObserveError> {
        let began = Instant::now();
        let mut next_sample = began + SAMPLE_FIRST;
        loop {
            self.drain();
            self.let_go();
            self.serve();
            self.reap(child);
            let alive = self.session.reaper.alive();
            if self.root_end.is_some() && (!until.tree || self.stop || !alive) {
                self.drain();
                return Ok(());
            }
            let mut wake = next_sample;
            if let Some(deadline) = until.deadline {
                if Instant::now() >= deadline {
                    self.timed_out = true;
                    self.session.tree.kill(&self.session.side);
                    child.signal(Signal::SIGKILL);
                } else {
                    wake = wake.min(deadline);
                }
            }
            self.wait(wake)?;
            for event in self.session.signals.drain() {
                self.asked |= event.asks_to_stop();
                if self.root_end.is_some() {
                    self.stop |= event.asks_to_stop();
                } else if let Some(signal) = event.to_forward(child.pid()) {
                    child.signal(signal);
                }
            }
            if Instant::now() >= next_sample {
                let s = &mut *self.session;
                s.tree.overdue(&mut s.side, &mut s.images);
                s.tree.sample(&mut s.side);
                let every = if began.elapsed() < SAMPLE_SOON_ENDS {
                    SAMPLE_FIRST
                } else {
                    SAMPLE_LATER
                };
                next_sample = Instant::now() + every;
            }
        }
    }

    /// Sleeps until something happens, at most until `wake`.
    fn wait(&self, wake: Instant) -> Result<(), ObserveError> {
        let timeout = wake.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(timeout + Duration::from_millis(1))
            .unwrap_or(PollTimeout::from(50u8));
        // The timeline wakes nobody: it is emptied whenever something else does.
        let desk = self.desk.as_ref().and_then(|d| d.fd());
        let hold = self.hold.as_ref().map(AsFd::as_fd);
        let mut fds: Vec<PollFd<'_>> = [
            Some(self.session.signals.as_fd()),
            Some(self.session.side.control.as_fd()),
            hold,
            desk,
        ]
        .into_iter()
        .flatten()
        .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
        .collect();
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::Error::EINTR) => Ok(()),
            Err(e) => Err(ObserveError::Poll(e)),
        }
    }

    fn serve(&mut self) {
        if let Some(desk) = &mut self.desk {
            let s = &mut *self.session;
            desk.serve(&mut View {
                kernel: &mut s.side,
                tree: &s.tree,
                images: &s.images,
            });
        }
    }

    fn drain(&mut self) {
        let s = &mut *self.session;
        for c in s.side.drain_control() {
            s.tree.on_control(&c, &mut s.side, &mut s.images);
            if c.stopped != 0 && s.released_after.is_none() {
                s.released_after = Some(s.start.elapsed());
            }
        }
        for e in s.side.drain_timeline() {
            if s.events.len() < TIMELINE_KEPT {
                s.events.push(e);
            } else {
                s.thinned += 1;
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
            let s = &mut *self.session;
            s.tree.on_held(held.pid, &mut s.side, &mut s.images);
            if let Some(hold) = &self.hold {
                hold.release(held);
            }
            s.released_after.get_or_insert_with(|| s.start.elapsed());
        }
        if self.hold.as_ref().is_some_and(Hold::is_over) {
            self.hold = None;
        }
    }

    fn reap(&mut self, child: &launch::Running) {
        while let Some(pid) = self.session.reaper.peek() {
            // What the kernel side says of its end came before; it is to be settled while the process
            // can still be asked for its clock.
            self.drain();
            let Some(r) = self.session.reaper.take(pid) else {
                break;
            };
            if r.pid == child.pid() {
                self.root_end = Some(r.end);
            }
            self.session
                .tree
                .on_reaped(r.pid, r.end, r.usage.peak_rss_bytes);
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
