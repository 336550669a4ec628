//! The maps, and the look-ups that every program shares.

use crate::atomic;
use aya_ebpf::{
    helpers::bpf_ktime_get_ns,
    macros::map,
    maps::{Array, HashMap, PerCpuArray, RingBuf},
};
use perf_gate_ebpf::{
    AddrKey, Background, Config, HeapKey, Iso, Losses, OPS, OpCount, Proc, Thread, ThreadKey,
    Window, WindowKey,
};

/// Elements are allocated when they are needed: a map of thousands that mostly stays empty would
/// otherwise take milliseconds and megabytes at every start. Safe in these programs from Linux 6.1 on.
const ON_DEMAND: u32 = aya_ebpf::bindings::BPF_F_NO_PREALLOC;

#[map]
pub static CONFIG: Array<Config> = Array::with_max_entries(1, 0);
/// Watched processes that run, by thread-group id.
#[map]
pub static PROCS: HashMap<u32, Proc> = HashMap::with_max_entries(16_384, 0);
/// Watched processes that ended, by [`Proc::id`]; the supervisor takes them out.
#[map]
pub static DEAD_PROCS: HashMap<u64, Proc> = HashMap::with_max_entries(16_384, ON_DEMAND);
/// Thread groups that have probe links of their own.
#[map]
pub static SCOPED: HashMap<u32, u32> = HashMap::with_max_entries(16_384, ON_DEMAND);
/// Living isolates.
#[map]
pub static ISOS: HashMap<HeapKey, Iso> = HashMap::with_max_entries(4096, ON_DEMAND);
/// Ended isolates, by [`Iso::seq`].
#[map]
pub static DEAD_ISOS: HashMap<u64, Iso> = HashMap::with_max_entries(4096, ON_DEMAND);
#[map]
pub static THREADS: HashMap<ThreadKey, Thread> = HashMap::with_max_entries(16_384, 0);
/// Living large pages: bytes of the object on each.
#[map]
pub static LARGE: HashMap<AddrKey, u64> = HashMap::with_max_entries(65_536, ON_DEMAND);
/// Living backing stores that bypass the allocator: committed bytes of each.
#[map]
pub static STORES: HashMap<AddrKey, u64> = HashMap::with_max_entries(65_536, ON_DEMAND);
/// How many external strings of each size live.
#[map]
pub static STRINGS: HashMap<AddrKey, u64> = HashMap::with_max_entries(65_536, ON_DEMAND);
/// Allocation areas of background threads.
#[map]
pub static BACKGROUND: HashMap<ThreadKey, Background> = HashMap::with_max_entries(4096, ON_DEMAND);
/// Descriptors whose file times are markers, as their processes introduced them.
#[map]
pub static MARKERS: HashMap<AddrKey, u64> = HashMap::with_max_entries(16_384, ON_DEMAND);
/// Marked windows, closed and open.
#[map]
pub static WINDOWS: HashMap<WindowKey, Window> = HashMap::with_max_entries(65_536, ON_DEMAND);
#[map]
pub static BLANK_BACKGROUND: Array<Background> = Array::with_max_entries(1, 0);
#[map]
pub static BLANK_WINDOW: Array<Window> = Array::with_max_entries(1, 0);
#[map]
pub static OPS_COUNT: PerCpuArray<OpCount> = PerCpuArray::with_max_entries(OPS as u32, 0);
#[map]
pub static LOSSES: Array<Losses> = Array::with_max_entries(1, 0);
/// Two counters: process ids and isolate numbers handed out.
#[map]
pub static SEQ: Array<u64> = Array::with_max_entries(2, 0);
/// Never written: what new records are copied from, since they do not fit the 512-byte stack.
#[map]
pub static BLANK_ISO: Array<Iso> = Array::with_max_entries(1, 0);
#[map]
pub static BLANK_THREAD: Array<Thread> = Array::with_max_entries(1, 0);
#[map]
pub static BLANK_PROC: Array<Proc> = Array::with_max_entries(1, 0);
#[map]
pub static CONTROL: RingBuf = RingBuf::with_byte_size(1 << 18, 0);
#[map]
pub static TIMELINE: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

pub const SEQ_PROC: u32 = 0;
pub const SEQ_ISO: u32 = 1;

/// A hit in a watched process.
pub struct Hit {
    pub pid_tgid: u64,
    pub proc: *mut Proc,
    pub count: *mut OpCount,
}

impl Hit {
    /// The effect of this hit could not be stored.
    #[inline(always)]
    pub fn lose(&self) {
        // SAFETY: points into a map value.
        unsafe { atomic::add(&raw mut (*self.count).lost, 1) }
    }

    #[inline(always)]
    pub fn proc_id(&self) -> u64 {
        // SAFETY: points into a map value.
        unsafe { (*self.proc).id }
    }

    /// This thread's state, made on first use.
    #[inline(always)]
    pub fn thread(&self) -> Option<*mut Thread> {
        if let Some(t) = THREADS.get_ptr_mut(self.pid_tgid) {
            return Some(t);
        }
        let blank = BLANK_THREAD.get(0)?;
        let _ = THREADS.insert(self.pid_tgid, blank, 0);
        let t = THREADS.get_ptr_mut(self.pid_tgid);
        if t.is_none() {
            self.lose();
        }
        t
    }

    #[inline(always)]
    pub fn iso(&self, heap: u64) -> Option<*mut Iso> {
        ISOS.get_ptr_mut(HeapKey {
            proc_id: self.proc_id(),
            heap,
        })
    }

    /// The isolate of `heap`, made when it was not seen before.
    #[inline(always)]
    pub fn iso_or_new(&self, heap: u64) -> Option<*mut Iso> {
        if let Some(iso) = self.iso(heap) {
            return Some(iso);
        }
        self.new_iso(heap)
    }

    #[inline(always)]
    pub fn new_iso(&self, heap: u64) -> Option<*mut Iso> {
        let key = HeapKey {
            proc_id: self.proc_id(),
            heap,
        };
        let blank = BLANK_ISO.get(0)?;
        let _ = ISOS.insert(key, blank, 0);
        let Some(iso) = ISOS.get_ptr_mut(key) else {
            self.lose();
            return None;
        };
        // SAFETY: points into a map value; only this thread works on a heap that is being set up.
        unsafe {
            (*iso).seq = next(SEQ_ISO);
            (*iso).proc_id = key.proc_id;
            (*iso).heap = heap;
            (*iso).tgid = (self.pid_tgid >> 32) as u32;
            (*iso).tid = self.pid_tgid as u32;
            (*iso).born_ns = now_ns();
        }
        Some(iso)
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds.
#[inline(always)]
pub fn now_ns() -> u64 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_ktime_get_ns() }
}

/// The next number of a sequence, from 1.
#[inline(always)]
pub fn next(which: u32) -> u64 {
    match SEQ.get_ptr_mut(which) {
        // SAFETY: points into a map value.
        Some(p) => unsafe { atomic::fetch_add(p, 1) + 1 },
        None => 0,
    }
}

/// Adds one to a field of [`Losses`].
macro_rules! lose {
    ($field:ident) => {
        if let Some(l) = $crate::maps::LOSSES.get_ptr_mut(0) {
            // SAFETY: points into a map value.
            unsafe { $crate::atomic::add(&raw mut (*l).$field, 1) }
        }
    };
}
pub(crate) use lose;
