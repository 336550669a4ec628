//! Records in maps (totals) and in the two ring buffers (control, timeline).

use crate::{HIST, KINDS, LABS, REASONS, SPACES};

/// Where the totals of one process live while it runs. Key of the map: its thread-group id in the
/// initial PID namespace. When the last thread is gone the record moves to the map of the dead.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Proc {
    /// Unique in the run; a process that execs over itself begins a new one.
    pub id: u64,
    pub tgid: u32,
    /// Thread-group id in the supervisor's PID namespace, 0 when it is not visible there.
    pub ns_pid: u32,
    pub parent_tgid: u32,
    pub flags: u32,
    /// Threads alive.
    pub threads: u64,
    pub born_ns: u64,
    /// 0 while it runs.
    pub gone_ns: u64,
    pub ext_alloc_count: u64,
    pub ext_alloc_bytes: u64,
    pub ext_free_count: u64,
    pub ext_free_bytes: u64,
    /// Backing stores that bypass the allocator (resizable, growable shared, WebAssembly).
    pub store_alloc_bytes: u64,
    pub store_free_bytes: u64,
    /// Characters of external strings.
    pub string_alloc_bytes: u64,
    pub string_free_bytes: u64,
    /// V8 pages by `MemoryAllocator`, large pages apart (bytes of their objects).
    pub pages_alloc: u64,
    pub pages_free: u64,
    pub large_live_bytes: u64,
    /// Hits in this process.
    pub hits: u64,
}

impl Proc {
    /// Bytes of external memory of all sorts that were allocated.
    #[inline(always)]
    #[must_use]
    pub const fn external_allocated(&self) -> u64 {
        self.ext_alloc_bytes + self.store_alloc_bytes + self.string_alloc_bytes
    }

    /// Those of them that were freed.
    #[inline(always)]
    #[must_use]
    pub const fn external_freed(&self) -> u64 {
        self.ext_free_bytes + self.store_free_bytes + self.string_free_bytes
    }
}

pub const PROC_ROOT: u32 = 1 << 0;
/// It has called exec since it was seen first.
pub const PROC_EXECED: u32 = 1 << 1;
/// It was replaced by an exec of its own, it did not end.
pub const PROC_REPLACED: u32 = 1 << 2;

/// Key of a living isolate.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeapKey {
    pub proc_id: u64,
    /// `Heap*` in the watched process.
    pub heap: u64,
}

/// Key of an address that belongs to a process: a large page, a backing store; or of a descriptor, or a size.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddrKey {
    pub proc_id: u64,
    pub addr: u64,
}

/// A linear allocation area: the bump pointer of one space in one thread.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Lab {
    /// Address of `{start, top, limit}` in the watched process.
    pub addr: u64,
    /// `top` when the books were last closed on it; 0 when there was no area, all ones before the first time.
    pub last: u64,
    /// Bytes allocated in it so far.
    pub total: u64,
    /// V8's space id.
    pub space: u32,
    pub pad: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LabSet {
    pub labs: [Lab; LABS],
    pub count: u64,
    /// Times that an area was not where it had been left: what was allocated meanwhile is unknown.
    pub breaks: u64,
}

/// Areas of a background thread (`LocalHeap` that is not the main thread's).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Background {
    pub local_heap: u64,
    pub heap: u64,
    pub set: LabSet,
}

/// Key of a window: isolate and its running number in it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WindowKey {
    pub iso_seq: u64,
    pub number: u64,
}

/// Figures that a window takes the difference of.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    pub t_ns: u64,
    pub spaces: [u64; SPACES],
    pub large_bytes: u64,
    pub large_count: u64,
    pub gcs: [u64; KINDS],
    pub incremental_starts: u64,
    pub pause_ns_total: u64,
    pub breaks: u64,
    /// Of the whole process: backing stores of all sorts and external strings.
    pub ext_alloc_bytes: u64,
    pub ext_free_bytes: u64,
    /// The strings' part of `ext_alloc_bytes`.
    pub string_alloc_bytes: u64,
}

/// A marked window.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub proc_id: u64,
    pub id: u64,
    pub scale: u64,
    /// Figures at its end minus figures at its begin, once it is closed; those at its begin until then.
    pub figures: Figures,
    /// `t_ns` at its begin.
    pub begin_ns: u64,
    pub closed: u64,
}

/// Totals of one isolate.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Iso {
    /// Unique in the run, ascending in order of birth.
    pub seq: u64,
    pub proc_id: u64,
    pub heap: u64,
    pub tgid: u32,
    /// Thread (in the initial PID namespace) that set it up.
    pub tid: u32,
    pub born_ns: u64,
    /// 0 while it lives.
    pub gone_ns: u64,
    /// Collections begun (prologues); equals the sum of `gcs` unless one was cut off by the end.
    pub begun: u64,
    pub gcs: [u64; KINDS],
    pub forced: [u64; KINDS],
    pub reasons: [[u64; REASONS]; KINDS],
    pub incremental_starts: u64,
    pub minor_incremental_starts: u64,
    /// Pauses that ended.
    pub pauses: u64,
    pub pause_ns_total: u64,
    pub pause_ns_max: u64,
    pub pause_hist: [u32; HIST],
    pub large_count: u64,
    pub large_bytes: u64,
    /// Pages handed to each space, by V8 space id.
    pub pages: [u64; SPACES],
    /// Areas of its own thread.
    pub set: LabSet,
    /// Bytes of its background threads.
    pub background_bytes: u64,
    /// Windows begun so far.
    pub windows: u64,
    /// Number of the open window, 0 when none is.
    pub open_window: u64,
    /// Markers out of order: a begin in a window, an end outside of one.
    pub bad_markers: u64,
    /// The books were closed at its very end: `set` is complete.
    pub complete: u64,
    /// What its own thread calls it, by [`crate::MARK_ASK`]; 0 when it never did.
    pub token: u64,
    /// Bytes of its objects when V8 last summed them up, and how often it has.
    pub live_bytes: u64,
    pub live_reads: u64,
}

/// State of a thread between two hits.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Thread {
    /// `Heap*` of the isolate that this thread last worked for.
    pub heap: u64,
    /// 0 outside a pause.
    pub pause_start_ns: u64,
    pub gc_heap: u64,
    pub gc_reason: u32,
    pub gc_flags: u32,
    /// Kind + 1 of the running collection, 0 when none was seen.
    pub gc_kind: u32,
    /// The next large page is a promotion.
    pub promoting: u32,
    /// Boundary functions entered and not left.
    pub depth: u32,
    /// It allocates through a background `LocalHeap`.
    pub background: u32,
    /// Operands kept from entry to return; a size of `u64::MAX` means none.
    pub buffer_size: u64,
    pub realloc_old: u64,
    pub realloc_new: u64,
    pub reserve_ret: u64,
    pub reserve_len: u64,
    pub resize_store: u64,
    pub resize_len: u64,
    pub grow_store: u64,
    pub grow_delta: u64,
    pub string_bytes: u64,
    /// Bytes of the heap's objects as V8 summed them up in the running pause: at first, and at last. 0: not yet.
    pub pause_size_first: u64,
    pub pause_size_last: u64,
}

/// Key of a thread: process id and thread id as `bpf_get_current_pid_tgid` gives them.
pub type ThreadKey = u64;

/// Hits and losses of one [`crate::Op`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct OpCount {
    pub hits: u64,
    /// Hits whose effect could not be stored: a full map, an unreadable operand, an unknown isolate.
    pub lost: u64,
}

/// Losses that belong to no probe.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Losses {
    /// A process of the tree that no longer fits the map.
    pub procs: u64,
    /// A control record that did not fit its ring: a process may have run unobserved.
    pub control: u64,
    /// Timeline records dropped; totals do not depend on them.
    pub timeline: u64,
    /// An ended isolate or process that no longer fits the map of the dead.
    pub graves: u64,
    /// Reads of `task_struct` that failed.
    pub tasks: u64,
}

/// Settings and the root to wait for; the supervisor writes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    pub ns_dev: u64,
    pub ns_ino: u64,
    /// Process to adopt at its next exec, in the supervisor's PID namespace; 0 when none is awaited.
    pub root_pid: u32,
    /// Byte offset of `pid` in `task_struct`; `tgid` follows it. 0 when unknown: forks go unseen.
    pub task_pid_offset: u32,
    /// Whether each exec in the tree is stopped until the supervisor continues it.
    pub stop_at_exec: u32,
    pub pad: u32,
    /// What a process must say to have its markers believed; below 2^31.
    pub nonce: u64,
}

pub const CONTROL_EXEC: u32 = 1;
pub const CONTROL_EXIT: u32 = 2;

/// A change in the process tree.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Control {
    pub kind: u32,
    pub tgid: u32,
    pub ns_pid: u32,
    pub parent_tgid: u32,
    pub proc_id: u64,
    pub t_ns: u64,
    /// 1 when the process was sent SIGSTOP and waits for the supervisor.
    pub stopped: u32,
    pub pad: u32,
}

/// One collection, for pictures only.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GcEvent {
    pub proc_id: u64,
    pub iso_seq: u64,
    /// Start of the pause.
    pub t_ns: u64,
    pub pause_ns: u64,
    pub kind: u32,
    pub reason: u32,
    pub flags: u32,
    pub tgid: u32,
    /// Bytes of the heap's objects before and after, 0 when V8 did not sum them up.
    pub heap_before: u64,
    pub heap_after: u64,
}

const _: () = {
    assert!(size_of::<Proc>() == 144);
    assert!(size_of::<HeapKey>() == 16);
    assert!(size_of::<AddrKey>() == 16);
    assert!(
        size_of::<Iso>()
            == 8 * 7
                + 8 * KINDS * 2
                + 8 * KINDS * REASONS
                + 8 * 5
                + 4 * HIST
                + 16
                + 8 * SPACES
                + size_of::<LabSet>()
                + 64
    );
    assert!(size_of::<Thread>() == 144);
    assert!(size_of::<Lab>() == 32);
    assert!(size_of::<LabSet>() == 32 * LABS + 16);
    assert!(size_of::<Background>() == 16 + size_of::<LabSet>());
    assert!(size_of::<WindowKey>() == 16);
    assert!(size_of::<Figures>() == 8 * (9 + SPACES + KINDS));
    assert!(size_of::<Window>() == 40 + size_of::<Figures>());
    assert!(size_of::<OpCount>() == 16);
    assert!(size_of::<Losses>() == 40);
    assert!(size_of::<Config>() == 40);
    assert!(size_of::<Control>() == 40);
    assert!(size_of::<GcEvent>() == 64);
};

#[cfg(feature = "user")]
mod pod {
    use super::{
        AddrKey, Background, Config, Control, GcEvent, HeapKey, Iso, Losses, OpCount, Proc, Thread,
        Window, WindowKey,
    };

    // SAFETY: all are `repr(C)` structs of integers without implicit padding (asserted above), so
    // that every bit pattern is a valid value.
    macro_rules! pod {
        ($($t:ty),*) => { $(
            // SAFETY: see above.
            unsafe impl aya::Pod for $t {}
        )* };
    }
    pod!(
        AddrKey, Background, Config, Control, GcEvent, HeapKey, Iso, Losses, OpCount, Proc, Thread,
        Window, WindowKey
    );
}

#[cfg(test)]
mod tests {
    use crate::{HIST, hist_bucket, hist_floor};

    #[test]
    fn buckets_are_monotonic_and_narrow() {
        let mut last = 0;
        for exp in 0..40u32 {
            for step in 0..16u64 {
                let ns = (1u64 << exp) + ((step << exp) >> 4);
                let b = hist_bucket(ns);
                assert!(b >= last, "bucket of {ns} went back");
                last = b;
                assert!(hist_floor(b) <= ns, "{ns} lies under its bucket's floor");
                if b + 1 < HIST {
                    assert!(hist_floor(b + 1) > ns, "{ns} lies over its bucket's end");
                }
            }
        }
        assert_eq!(hist_bucket(u64::MAX), HIST - 1);
    }
}
