//! The loaded object: its maps under their names, its programs, its rings. One value owns all of it;
//! dropping it (or dying) leaves nothing behind, since nothing is pinned.

use crate::kernel::bpf::{self, Code, Link, Refused, UPROBE_MULTI};
use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, RingBuf};
use aya_log::EbpfLogger;
use aya_obj::{
    Object,
    generated::{
        bpf_map_type::{
            BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_PERCPU_ARRAY, BPF_MAP_TYPE_RINGBUF,
        },
        bpf_prog_type::{BPF_PROG_TYPE_KPROBE, BPF_PROG_TYPE_RAW_TRACEPOINT},
    },
};
use perf_gate_ebpf::{
    AddrKey, Config, Control, GcEvent, HeapKey, Iso, Losses, OPS, Op, OpCount, Proc, Window,
    WindowKey,
};
use std::{
    collections::{HashMap as StdMap, HashSet},
    ffi::CStr,
    fmt::Display,
    mem,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd},
    sync::OnceLock,
};

/// The object that this binary was built with (see `bpf/`).
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(env!("PERF_GATE_OBJECT"));

#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("the eBPF object is damaged: {0}; build perf-gate again")]
    Object(String),
    #[error("the eBPF object has no {0}; it does not belong to this perf-gate, build it again")]
    Missing(&'static str),
    #[error(
        "the kernel gives no BPF map ({0}); run as root or with CAP_BPF and CAP_PERFMON (or raise ulimit -n, should files run out), and see `perf-gate doctor`"
    )]
    Create(String),
    #[error("a BPF map cannot be read or written: {0}")]
    Map(#[from] MapError),
    #[error("the kernel refused the program `{name}`: {source}; see `perf-gate doctor`{log}")]
    Program {
        name: &'static str,
        source: std::io::Error,
        log: String,
    },
    #[error("the tracepoint {0} cannot be attached: {1}; see `perf-gate doctor`")]
    Tracepoint(&'static str, std::io::Error),
}

pub struct KernelSide {
    pub entry: OwnedFd,
    pub at_return: OwnedFd,
    /// Whether function probes go on by `uprobe_multi` links (6.6), or by one perf event each.
    pub multi: bool,
    pub config: Array<MapData, Config>,
    pub procs: HashMap<MapData, u32, Proc>,
    pub dead_procs: HashMap<MapData, u64, Proc>,
    pub scoped: HashMap<MapData, u32, u32>,
    pub isos: HashMap<MapData, HeapKey, Iso>,
    pub dead_isos: HashMap<MapData, u64, Iso>,
    pub large: HashMap<MapData, AddrKey, u64>,
    pub stores: HashMap<MapData, AddrKey, u64>,
    pub strings: HashMap<MapData, AddrKey, u64>,
    pub windows: HashMap<MapData, WindowKey, Window>,
    pub markers: HashMap<MapData, AddrKey, u64>,
    pub ops: PerCpuArray<MapData, OpCount>,
    pub losses: Array<MapData, Losses>,
    pub control: RingBuf<MapData>,
    pub timeline: RingBuf<MapData>,
    follow: Vec<(OwnedFd, &'static str, &'static CStr)>,
    links: Vec<Link>,
    logger: Option<EbpfLogger<&'static dyn log::Log>>,
    /// Maps that only the programs use; the programs hold them too, but not before they are loaded.
    _maps: Vec<MapData>,
}

/// Programs that follow the process tree, and their tracepoints.
const FOLLOW: [(&str, &str, &CStr); 3] = [
    ("on_fork", "sched_process_fork", c"sched_process_fork"),
    ("on_exec", "sched_process_exec", c"sched_process_exec"),
    ("on_exit", "sched_process_exit", c"sched_process_exit"),
];

const LOG_LEVEL: &str = "AYA_LOG_LEVEL";
/// `Level::Debug` of aya-log-common.
const LOG_DEBUG: u8 = 4;

impl KernelSide {
    /// Loads the object.
    ///
    /// # Errors
    /// When the kernel refuses any part of it.
    pub fn load() -> Result<Self, KernelError> {
        let damaged = |e: &dyn Display| KernelError::Object(e.to_string());
        let verbose = log::log_enabled!(log::Level::Debug);
        let level: [u8; 1] = [if verbose { LOG_DEBUG } else { 0 }];
        let mut object = Object::parse(OBJECT).map_err(|e| damaged(&e))?;
        object
            .patch_map_data(StdMap::from([(LOG_LEVEL, (&level[..], false))]))
            .map_err(|e| damaged(&e))?;
        let text: HashSet<usize> = object.functions.keys().map(|k| k.0).collect();
        let defined = mem::take(&mut object.maps);
        let mut maps: StdMap<String, MapData> = StdMap::new();
        for (name, map) in &defined {
            let data = MapData::create(map.clone(), name, None)
                .map_err(|e| KernelError::Create(chain(&e)))?;
            if !map.data().is_empty() {
                bpf::write_globals(data.fd().as_fd(), map.data())
                    .map_err(|e| KernelError::Create(e.to_string()))?;
            }
            maps.insert(name.clone(), data);
        }
        let fds: Vec<(&str, RawFd, &aya_obj::Map)> = defined
            .iter()
            .map(|(name, map)| (name.as_str(), maps[name].fd().as_fd().as_raw_fd(), map))
            .collect();
        object
            .relocate_maps(fds.into_iter(), &text)
            .map_err(|e| damaged(&e))?;
        object.relocate_calls(&text).map_err(|e| damaged(&e))?;

        // The verifier takes milliseconds for each program, on one core each.
        let kprobe = BPF_PROG_TYPE_KPROBE as u32;
        let raw = BPF_PROG_TYPE_RAW_TRACEPOINT as u32;
        let object = &object;
        let probes = |expected| {
            Ok::<_, KernelError>((
                program(object, "on_entry", kprobe, expected)?,
                program(object, "on_return", kprobe, expected)?,
            ))
        };
        let (probes_loaded, follow) = std::thread::scope(|s| {
            let follow = s.spawn(|| {
                FOLLOW.map(|(name, tracepoint, c_name)| {
                    Ok((program(object, name, raw, 0)?, tracepoint, c_name))
                })
            });
            (probes(UPROBE_MULTI), follow.join())
        });
        let (mut entry, mut at_return) = probes_loaded?;
        let follow = follow
            .map_err(|_| KernelError::Object("loading it failed".into()))?
            .into_iter()
            .collect::<Result<Vec<_>, KernelError>>()?;
        // Whatever else is wrong shows when the first link is made.
        let multi = bpf::has_uprobe_multi(entry.as_fd()).unwrap_or(true);
        if !multi {
            (entry, at_return) = probes(0)?;
        }
        let logger = verbose
            .then(|| program_id(&follow[0].0))
            .flatten()
            .and_then(|id| EbpfLogger::init_from_id(id).ok());
        let mut take = |name: &'static str| {
            let data = maps.remove(name).ok_or(KernelError::Missing(name))?;
            wrap(data, &defined[name]).ok_or(KernelError::Missing(name))
        };
        Ok(Self {
            entry,
            at_return,
            multi,
            config: take("CONFIG")?.try_into()?,
            procs: take("PROCS")?.try_into()?,
            dead_procs: take("DEAD_PROCS")?.try_into()?,
            scoped: take("SCOPED")?.try_into()?,
            isos: take("ISOS")?.try_into()?,
            dead_isos: take("DEAD_ISOS")?.try_into()?,
            large: take("LARGE")?.try_into()?,
            stores: take("STORES")?.try_into()?,
            strings: take("STRINGS")?.try_into()?,
            windows: take("WINDOWS")?.try_into()?,
            markers: take("MARKERS")?.try_into()?,
            ops: take("OPS_COUNT")?.try_into()?,
            losses: take("LOSSES")?.try_into()?,
            control: take("CONTROL")?.try_into()?,
            timeline: take("TIMELINE")?.try_into()?,
            follow,
            links: Vec::new(),
            logger,
            _maps: maps.into_values().collect(),
        })
    }

    /// Attaches the programs that follow the process tree, unless they are.
    ///
    /// # Errors
    /// When the kernel refuses one.
    pub fn follow(&mut self) -> Result<(), KernelError> {
        if !self.links.is_empty() {
            return Ok(());
        }
        for (program, name, c_name) in &self.follow {
            let link = bpf::raw_tracepoint(program.as_fd(), c_name)
                .map_err(|e| KernelError::Tracepoint(name, e))?;
            self.links.push(link);
        }
        Ok(())
    }

    /// Gives up the links to the process tree's programs.
    pub fn unfollow(&mut self) -> Vec<Link> {
        std::mem::take(&mut self.links)
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

fn program(
    object: &Object,
    name: &'static str,
    kind: u32,
    expected_attach_type: u32,
) -> Result<OwnedFd, KernelError> {
    let missing = || KernelError::Missing("program of that name");
    let program = object.programs.get(name).ok_or_else(missing)?;
    let function = object
        .functions
        .get(&program.function_key())
        .ok_or_else(missing)?;
    let code = Code {
        name,
        kind,
        expected_attach_type,
        license: &program.license,
        instructions: &function.instructions,
    };
    bpf::load(&code).map_err(|Refused { source, log }| KernelError::Program { name, source, log })
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

/// A map under aya's name for its type.
fn wrap(data: MapData, defined: &aya_obj::Map) -> Option<Map> {
    const ARRAY: u32 = BPF_MAP_TYPE_ARRAY as u32;
    const PER_CPU_ARRAY: u32 = BPF_MAP_TYPE_PERCPU_ARRAY as u32;
    const HASH: u32 = BPF_MAP_TYPE_HASH as u32;
    const RING: u32 = BPF_MAP_TYPE_RINGBUF as u32;
    Some(match defined.map_type() {
        ARRAY => Map::Array(data),
        PER_CPU_ARRAY => Map::PerCpuArray(data),
        HASH => Map::HashMap(data),
        RING => Map::RingBuf(data),
        _ => return None,
    })
}

fn program_id(program: &OwnedFd) -> Option<u32> {
    let info =
        std::fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_raw_fd())).ok()?;
    let line = info.lines().find_map(|l| l.strip_prefix("prog_id:"))?;
    line.trim().parse().ok()
}

/// An error with its causes, on one line.
fn chain(e: &dyn std::error::Error) -> String {
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
