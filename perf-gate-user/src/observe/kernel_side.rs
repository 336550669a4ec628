//! The loaded object: its maps under their names, its programs, its rings. One value owns all of it;
//! dropping it (or dying) leaves nothing behind, since nothing is pinned.

use super::multi::{self, MultiError, Program};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, RingBuf},
    programs::{RawTracePoint, UProbe},
};
use aya_log::EbpfLogger;
use perf_gate_ebpf::{
    AddrKey, Config, Control, GcEvent, HeapKey, Iso, Losses, OPS, Op, OpCount, Proc,
};
use std::{
    os::fd::{AsFd as _, BorrowedFd},
    sync::OnceLock,
};

/// The object that this binary was built with (see `bpf/`).
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("PERF_GATE_OBJECT"));

#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error(
        "the kernel side cannot be loaded: {0}; run as root or with CAP_BPF and CAP_PERFMON, and see `perf-gate doctor`"
    )]
    Load(String),
    #[error("the eBPF object has no {0}; it does not belong to this perf-gate")]
    Missing(&'static str),
    #[error("a BPF map cannot be read or written: {0}")]
    Map(#[from] MapError),
    #[error(transparent)]
    Multi(#[from] MultiError),
    #[error("the tracepoint {0} cannot be attached: {1}; see `perf-gate doctor`")]
    Tracepoint(&'static str, String),
}

/// How function probes are attached on this kernel.
pub enum Probes {
    /// `uprobe_multi`, from 6.6: entry and return program.
    Multi { entry: Program, at_return: Program },
    /// One perf event a point, before 6.6.
    PerfEvents,
}

pub struct KernelSide {
    pub ebpf: Ebpf,
    pub probes: Probes,
    pub config: Array<MapData, Config>,
    pub procs: HashMap<MapData, u32, Proc>,
    pub dead_procs: HashMap<MapData, u64, Proc>,
    pub scoped: HashMap<MapData, u32, u32>,
    pub isos: HashMap<MapData, HeapKey, Iso>,
    pub dead_isos: HashMap<MapData, u64, Iso>,
    pub large: HashMap<MapData, AddrKey, u64>,
    pub stores: HashMap<MapData, AddrKey, u64>,
    pub ops: PerCpuArray<MapData, OpCount>,
    pub losses: Array<MapData, Losses>,
    pub control: RingBuf<MapData>,
    pub timeline: RingBuf<MapData>,
    logger: Option<EbpfLogger<&'static dyn log::Log>>,
}

const ENTRY: &str = "on_entry";
const RETURN: &str = "on_return";
const TRACEPOINTS: [(&str, &str); 3] = [
    ("on_fork", "sched_process_fork"),
    ("on_exec", "sched_process_exec"),
    ("on_exit", "sched_process_exit"),
];

impl KernelSide {
    /// Loads the object and attaches the process-tree programs.
    ///
    /// # Errors
    /// When the kernel refuses any part of it.
    pub fn load() -> Result<Self, KernelError> {
        let verbose = log::log_enabled!(log::Level::Debug);
        // aya would parse the kernel's BTF (40 ms, 30 MB) for relocations that this object has not.
        let level: u8 = if verbose { 4 } else { 0 };
        let mut ebpf = EbpfLoader::new()
            .btf(None)
            .override_global("AYA_LOG_LEVEL", &level, false)
            .load(OBJECT)
            .map_err(|e| KernelError::Load(chain(&e)))?;
        let fds = ebpf
            .maps()
            .filter_map(|(name, map)| Some((name, map_fd(map)?)))
            .collect::<Vec<_>>();
        let [entry, at_return] = multi::load(OBJECT, &fds, [ENTRY, RETURN])?;
        let probes = if entry.supported() {
            Probes::Multi { entry, at_return }
        } else {
            Probes::PerfEvents
        };
        if matches!(probes, Probes::PerfEvents) {
            for name in [ENTRY, RETURN] {
                let program: &mut UProbe = ebpf
                    .program_mut(name)
                    .ok_or(KernelError::Missing("uprobe programs"))?
                    .try_into()
                    .map_err(|e: aya::programs::ProgramError| KernelError::Load(chain(&e)))?;
                program.load().map_err(|e| KernelError::Load(chain(&e)))?;
            }
        }
        let logger = verbose
            .then(|| EbpfLogger::init(&mut ebpf).ok())
            .flatten();
        Ok(Self {
            config: take(&mut ebpf, "CONFIG")?.try_into()?,
            procs: take(&mut ebpf, "PROCS")?.try_into()?,
            dead_procs: take(&mut ebpf, "DEAD_PROCS")?.try_into()?,
            scoped: take(&mut ebpf, "SCOPED")?.try_into()?,
            isos: take(&mut ebpf, "ISOS")?.try_into()?,
            dead_isos: take(&mut ebpf, "DEAD_ISOS")?.try_into()?,
            large: take(&mut ebpf, "LARGE")?.try_into()?,
            stores: take(&mut ebpf, "STORES")?.try_into()?,
            ops: take(&mut ebpf, "OPS_COUNT")?.try_into()?,
            losses: take(&mut ebpf, "LOSSES")?.try_into()?,
            control: take(&mut ebpf, "CONTROL")?.try_into()?,
            timeline: take(&mut ebpf, "TIMELINE")?.try_into()?,
            ebpf,
            probes,
            logger,
        })
    }

    /// Attaches the programs that follow the process tree.
    ///
    /// # Errors
    /// When the kernel refuses one.
    pub fn follow(&mut self) -> Result<(), KernelError> {
        for (program, tracepoint) in TRACEPOINTS {
            let failed = |e: &dyn std::error::Error| KernelError::Tracepoint(tracepoint, chain(e));
            let p: &mut RawTracePoint = self
                .ebpf
                .program_mut(program)
                .ok_or(KernelError::Missing("tracepoint programs"))?
                .try_into()
                .map_err(|e: aya::programs::ProgramError| failed(&e))?;
            p.load().map_err(|e| failed(&e))?;
            p.attach(tracepoint).map_err(|e| failed(&e))?;
        }
        Ok(())
    }

    /// Hits and losses by operation, summed over the CPUs.
    ///
    /// # Errors
    /// When the map cannot be read.
    pub fn op_counts(&self) -> Result<[OpCount; OPS], KernelError> {
        let mut out = [OpCount::default(); OPS];
        for op in Op::ALL {
            for cpu in self.ops.get(&u32::from(op as u8), 0)?.iter() {
                out[op as usize].hits += cpu.hits;
                out[op as usize].lost += cpu.lost;
            }
        }
        Ok(out)
    }

    /// Takes every waiting record out of the control ring.
    pub fn drain_control(&mut self) -> Vec<Control> {
        drain(&mut self.control)
    }

    /// Takes every waiting record out of the timeline, and prints the kernel side's log lines.
    pub fn drain_timeline(&mut self) -> Vec<GcEvent> {
        if let Some(logger) = &mut self.logger {
            logger.flush();
        }
        drain(&mut self.timeline)
    }
}

fn drain<T: aya::Pod>(ring: &mut RingBuf<MapData>) -> Vec<T> {
    let mut out = Vec::new();
    while let Some(item) = ring.next() {
        if item.len() == size_of::<T>() {
            // SAFETY: `T` is plain data of exactly this size; the ring gives no alignment.
            out.push(unsafe { item.as_ptr().cast::<T>().read_unaligned() });
        }
    }
    out
}

fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<Map, KernelError> {
    ebpf.take_map(name).ok_or(KernelError::Missing(name))
}

fn map_fd(map: &Map) -> Option<BorrowedFd<'_>> {
    match map {
        Map::Array(m) | Map::PerCpuArray(m) | Map::HashMap(m) | Map::RingBuf(m) => {
            Some(m.fd().as_fd())
        }
        _ => None,
    }
}

/// An error with its causes, on one line.
pub fn chain(e: &dyn std::error::Error) -> String {
    let mut out = e.to_string();
    let mut next = e.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !out.contains(&text) {
            out.push_str(": ");
            out.push_str(text.trim());
        }
        next = cause.source();
    }
    out.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Device and inode of our PID namespace, as `bpf_get_ns_current_pid_tgid` wants them.
pub fn pid_namespace() -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    static NS: OnceLock<(u64, u64)> = OnceLock::new();
    *NS.get_or_init(|| {
        std::fs::metadata("/proc/self/ns/pid").map_or((0, 0), |m| (m.dev(), m.ino()))
    })
}
