//! The processes of the tree, from their first exec to their end. Each new program waits: it is looked
//! at, its probes attached, its counters opened, and only then does it go on. It waits because it is
//! held at its start, a moment after its exec was announced; or, where nothing can be held, because
//! it was stopped at the exec.

use super::{
    attach::Links,
    collect::{Isolates, file_isolate},
    counters::{Counters, cpu_time_ns},
    detach::Detacher,
    images::{Images, NodeId},
    kernel_side::{KernelSide, pid_namespace},
    pidfd::Pidfd,
    rss::Sampler,
};
use crate::model::{self, End};
use perf_gate_ebpf::{
    AddrKey, CONTROL_EXEC, CONTROL_EXIT, Control, HeapKey, Iso, Proc, Window, WindowKey,
};
use procfs::process::Process as Procfs;
use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

/// Inode of the initial PID namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// How long a program may take from its exec to where it is held. Some never come there: they are
/// of another architecture or do without a C library, and run no V8.
const TO_THE_HOLD: Duration = Duration::from_millis(100);

/// One program image running in one process.
pub struct Watched {
    pub proc_id: u64,
    pub tgid: u32,
    /// In our PID namespace; 0 when it has none there.
    pub pid: u32,
    pub parent_tgid: u32,
    pub exe: String,
    pub argv: Vec<String>,
    pub node: Option<NodeId>,
    /// Why it is a node whose probes are not attached, or a program that could not be looked at.
    pub trouble: Option<String>,
    pub counters: Option<Counters>,
    pub counted: Option<model::Counters>,
    pub rss: Sampler,
    pub end: End,
    /// The kernel side's last record of it, once it is gone.
    pub last: Option<Proc>,
    links: Option<Links>,
    pidfd: Option<Pidfd>,
}

/// All processes of a session, in order of their first exec.
pub struct Tree {
    pub all: Vec<Watched>,
    /// Thread-group id to index in `all`, of those that run.
    live: HashMap<u32, usize>,
    pub doubts: Vec<String>,
    /// Counters of the direct child, opened before its exec.
    root_counters: Option<Counters>,
    pub isolates: Isolates,
    pub windows: Vec<(WindowKey, Window)>,
    /// New programs are held at their start, not stopped at their exec.
    holding: bool,
    /// Announced, and not yet at the hold.
    coming: Vec<(Instant, Control)>,
    detacher: Detacher,
}

impl Tree {
    #[must_use]
    pub fn new() -> Self {
        Self {
            all: Vec::new(),
            live: HashMap::new(),
            doubts: Vec::new(),
            root_counters: None,
            isolates: Isolates::new(),
            windows: Vec::new(),
            holding: false,
            coming: Vec::new(),
            detacher: Detacher::new(),
        }
    }

    /// A program of ours is about to begin: its counters, and whether it is held at its start.
    pub fn expect(&mut self, counters: Option<Counters>, holding: bool) {
        self.root_counters = counters;
        self.holding = holding;
    }

    /// The running image of a process.
    pub fn running(&self, tgid: u32) -> Option<&Watched> {
        self.live.get(&tgid).map(|&index| &self.all[index])
    }

    /// Kills every process of the tree.
    pub fn kill(&self, kernel: &KernelSide) {
        for (tgid, proc) in kernel.procs.iter().filter_map(Result::ok) {
            let pid = self.running(tgid).map_or(proc.ns_pid, |w| w.pid);
            if pid > 1 {
                // One that is gone already is what was wanted.
                let _ = super::pidfd::kill(pid, libc::SIGKILL);
            }
        }
    }

    /// Acts on one record of the control ring.
    pub fn on_control(&mut self, c: &Control, kernel: &mut KernelSide, images: &mut Images) {
        match c.kind {
            CONTROL_EXEC if self.holding => {
                self.hasten(|earlier| earlier.tgid == c.tgid, kernel, images);
                self.coming.push((Instant::now(), *c));
            }
            CONTROL_EXEC => {
                let pid = self.resolve(c);
                self.on_exec(c, pid, kernel, images);
            }
            CONTROL_EXIT => {
                self.hasten(|earlier| earlier.tgid == c.tgid, kernel, images);
                self.on_exit(c, kernel);
            }
            _ => {}
        }
    }

    /// The process `pid` waits at the start of its program.
    pub fn on_held(&mut self, pid: u32, kernel: &mut KernelSide, images: &mut Images) {
        let same = |(_, c): &(Instant, Control)| self.number(c) == Some(pid);
        // One in a PID namespace below ours is announced without a number of ours; it has one here.
        let unnumbered = |(_, c): &(Instant, Control)| self.number(c).is_none();
        let found = self.coming.iter().position(same);
        if let Some(at) = found.or_else(|| self.coming.iter().position(unnumbered)) {
            let (_, c) = self.coming.remove(at);
            self.on_exec(&c, Some(pid).filter(|p| *p != 0), kernel, images);
        }
    }

    /// Looks at programs that did not come to the hold in time.
    pub fn overdue(&mut self, kernel: &mut KernelSide, images: &mut Images) {
        let before = Instant::now().checked_sub(TO_THE_HOLD);
        while let Some((since, c)) = self.coming.first().copied()
            && before.is_some_and(|b| since < b)
        {
            self.coming.remove(0);
            self.on_exec(&c, self.number(&c), kernel, images);
        }
    }

    /// Looks at once at programs that will not come to the hold.
    fn hasten(
        &mut self,
        which: impl Fn(&Control) -> bool,
        kernel: &mut KernelSide,
        images: &mut Images,
    ) {
        while let Some(at) = self.coming.iter().position(|(_, c)| which(c)) {
            let (_, c) = self.coming.remove(at);
            self.on_exec(&c, self.number(&c), kernel, images);
        }
    }

    fn on_exec(
        &mut self,
        c: &Control,
        pid: Option<u32>,
        kernel: &mut KernelSide,
        images: &mut Images,
    ) {
        if let Some(old) = self.live.remove(&c.tgid) {
            // At once, not at leisure: they follow the process into its next program, and when that is
            // the same node again, every hit would be counted twice until they are gone.
            drop(self.all[old].links.take());
            self.settle(old, kernel, End::Replaced);
        }
        let Some(pid) = pid else {
            self.doubts.push(format!(
                "process {} of the tree cannot be found under /proc, so its program was not looked at",
                c.tgid
            ));
            return;
        };
        let pidfd = Pidfd::open(pid).ok();
        let mut w = Watched {
            proc_id: c.proc_id,
            tgid: c.tgid,
            pid,
            parent_tgid: c.parent_tgid,
            exe: String::new(),
            argv: Vec::new(),
            node: None,
            trouble: None,
            counters: self
                .root_counters
                .take()
                .or_else(|| Some(Counters::open(pid))),
            counted: None,
            rss: Sampler::default(),
            end: End::StillRunning,
            last: None,
            links: None,
            pidfd,
        };
        if let Ok(p) = Procfs::new(pid as i32) {
            w.exe = p.exe().map(|e| e.display().to_string()).unwrap_or_default();
            w.argv = arguments(pid);
        }
        match images.look(pid) {
            Ok(None) => {}
            Ok(Some(node)) => {
                w.node = Some(node);
                match images.give(kernel, node, pid, c.tgid) {
                    Ok(links) => w.links = links,
                    Err(e) => w.trouble = Some(e.to_string()),
                }
            }
            Err(why) => w.trouble = Some(why),
        }
        // A process that is killed while we look is gone by now, which is no fault.
        if c.stopped != 0 {
            let sent = match &w.pidfd {
                Some(fd) => fd.signal(libc::SIGCONT),
                None => super::pidfd::kill(pid, libc::SIGCONT),
            };
            if let Err(e) = sent
                && e.raw_os_error() != Some(libc::ESRCH)
            {
                self.doubts
                    .push(format!("process {pid} cannot be continued: {e}"));
            }
        } else if !self.holding {
            w.trouble.get_or_insert_with(|| {
                "it could not be held at its exec, so its start was not observed".into()
            });
        }
        self.live.insert(c.tgid, self.all.len());
        self.all.push(w);
    }

    /// The process's id in our namespace, if the kernel side could tell it.
    fn number(&self, c: &Control) -> Option<u32> {
        if c.ns_pid != 0 {
            return Some(c.ns_pid);
        }
        (pid_namespace().1 == INITIAL_PID_NAMESPACE).then_some(c.tgid)
    }

    /// The id in our namespace of a process that is stopped at its exec.
    fn resolve(&self, c: &Control) -> Option<u32> {
        if let Some(pid) = self.number(c) {
            return Some(pid);
        }
        // It lives in a namespace below ours, of which the kernel side knows no number of ours. It is
        // the one that is stopped, below us, and not known yet.
        let known: HashSet<u32> = self.live.values().map(|&i| self.all[i].pid).collect();
        let ours = std::fs::read_link("/proc/self/ns/pid").ok()?;
        procfs::process::all_processes()
            .ok()?
            .filter_map(Result::ok)
            .find(|p| {
                !known.contains(&(p.pid as u32))
                    && p.stat().is_ok_and(|s| s.state == 'T')
                    && std::fs::read_link(format!("/proc/{}/ns/pid", p.pid))
                        .is_ok_and(|n| n != ours)
            })
            .map(|p| p.pid as u32)
    }

    fn on_exit(&mut self, c: &Control, kernel: &mut KernelSide) {
        match self.live.remove(&c.tgid) {
            Some(index) => self.settle(index, kernel, End::Unknown),
            // It forked and never came to a program of its own.
            None => {
                let _ = kernel.dead_procs.remove(&c.proc_id);
            }
        }
    }

    /// Takes the last figures of an image that is no more.
    fn settle(&mut self, index: usize, kernel: &mut KernelSide, end: End) {
        let w = &mut self.all[index];
        if end == End::Replaced {
            w.end = end;
        } else if w.end == End::StillRunning {
            w.end = End::Unknown;
        }
        if let Ok(last) = kernel.dead_procs.get(&w.proc_id, 0) {
            w.last = Some(last);
            let _ = kernel.dead_procs.remove(&w.proc_id);
        }
        w.counted = w.counters.take().map(|mut c| c.read());
        if end != End::Replaced
            && let (Some(counted), Some(ns)) = (&mut w.counted, cpu_time_ns(w.pid))
            && counted.task_clock_ns.is_some()
        {
            counted.task_clock_ns = Some(ns);
        }
        let _ = kernel.scoped.remove(&w.tgid);
        self.detacher.take(w.links.take());
        if w.node.is_some() {
            let id = w.proc_id;
            self.harvest(kernel, Some(id));
            forget_addresses(kernel, id);
        }
    }

    /// Moves isolates out of the kernel's maps: those that ended, and those of one process, or all.
    fn harvest(&mut self, kernel: &mut KernelSide, only: Option<u64>) {
        self.harvest_ended(kernel);
        let keys: Vec<HeapKey> = kernel
            .isos
            .keys()
            .filter_map(Result::ok)
            .filter(|k| only.is_none_or(|id| k.proc_id == id))
            .collect();
        for key in keys {
            if let Ok(iso) = kernel.isos.get(&key, 0) {
                file_isolate(&mut self.isolates, iso);
            }
            let _ = kernel.isos.remove(&key);
        }
        let windows: Vec<_> = kernel
            .windows
            .iter()
            .filter_map(Result::ok)
            .filter(|(_, w)| only.is_none_or(|id| w.proc_id == id))
            .collect();
        for (key, window) in windows {
            let _ = kernel.windows.remove(&key);
            self.windows.push((key, window));
        }
    }

    /// Moves isolates that ended, so that a program of many short workers does not fill their map.
    fn harvest_ended(&mut self, kernel: &mut KernelSide) {
        let ended: Vec<Iso> = kernel
            .dead_isos
            .iter()
            .filter_map(Result::ok)
            .map(|(_, iso)| iso)
            .collect();
        for iso in ended {
            let _ = kernel.dead_isos.remove(&iso.seq);
            file_isolate(&mut self.isolates, iso);
        }
    }

    /// Notes how a process ended, as its parent (we) was told.
    pub fn on_reaped(&mut self, pid: u32, end: End, peak_rss_bytes: u64) {
        let found = self
            .all
            .iter()
            .rposition(|w| w.pid == pid && w.end != End::Replaced);
        let Some(index) = found else { return };
        // The kernel's figure covers the descendants that it waited for.
        let tgid = self.all[index].tgid;
        let alone = self
            .all
            .iter()
            .all(|w| w.parent_tgid != tgid || w.tgid == tgid);
        let w = &mut self.all[index];
        w.end = end;
        if alone {
            w.rss.exact_peak(peak_rss_bytes);
        }
    }

    /// Samples the memory of every node that runs.
    pub fn sample(&mut self, kernel: &mut KernelSide) {
        self.harvest_ended(kernel);
        for (tgid, &index) in &self.live {
            let w = &mut self.all[index];
            if w.node.is_some() {
                let record = kernel.procs.get(tgid, 0).ok();
                w.rss.sample(w.pid, record.as_ref());
            }
        }
    }

    /// Closes the books: what still runs is read as it stands, ends that only a pidfd knows are asked,
    /// every link goes.
    pub fn close(&mut self, kernel: &mut KernelSide, images: &mut Images) {
        self.hasten(|_| true, kernel, images);
        images
            .take_links()
            .into_iter()
            .for_each(|l| self.detacher.take(Some(l)));
        for (tgid, index) in std::mem::take(&mut self.live) {
            let w = &mut self.all[index];
            w.last = kernel.procs.get(&tgid, 0).ok().or_else(|| {
                let last = kernel.dead_procs.get(&w.proc_id, 0).ok();
                w.end = End::Unknown;
                last
            });
            w.counted = w.counters.take().map(|mut c| c.read());
            self.detacher.take(w.links.take());
        }
        self.harvest(kernel, None);
        for w in &mut self.all {
            if w.end == End::Unknown
                && let Some(end) = w.pidfd.as_ref().and_then(Pidfd::ended)
            {
                w.end = end;
            }
            w.pidfd = None;
        }
        self.detacher.take(Some(kernel.unfollow().into()));
        self.detacher.leave();
    }
}

/// Its arguments, which need not be text.
fn arguments(pid: u32) -> Vec<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    bytes
        .split(|b| *b == 0)
        .map(|a| String::from_utf8_lossy(a).into_owned())
        .collect()
}

/// Drops what a process that is gone left in the maps of addresses, so that they do not fill up.
fn forget_addresses(kernel: &mut KernelSide, proc_id: u64) {
    for map in [
        &mut kernel.large,
        &mut kernel.markers,
        &mut kernel.stores,
        &mut kernel.strings,
    ] {
        let mine: Vec<AddrKey> = map
            .keys()
            .filter_map(Result::ok)
            .filter(|k| k.proc_id == proc_id)
            .collect();
        for key in mine {
            let _ = map.remove(&key);
        }
    }
}
