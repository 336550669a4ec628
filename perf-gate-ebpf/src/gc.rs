//! Collections. A pause brackets a prologue (reason, flags) and one collector function (kind), all
//! on the isolate's own thread; the thread record carries the state between them. A collection is
//! counted when its collector starts, so that the counts need no pause probe.

use crate::{
    alloc, atomic,
    maps::{Hit, TIMELINE, lose, now_ns},
    regs::Args,
};
use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use perf_gate_ebpf::{FLAG_FORCED, GcEvent, HIST, Iso, KINDS, REASONS, Thread, hist_bucket};

#[inline(always)]
pub fn pause_start(hit: &Hit) {
    let Some(t) = hit.thread() else { return };
    // What the collector moves through the areas is not allocation.
    alloc::close_all(hit, t);
    // SAFETY: points into a map value that only this thread writes.
    unsafe {
        (*t).pause_start_ns = now_ns();
        (*t).gc_kind = 0;
        (*t).pause_size_first = 0;
        (*t).pause_size_last = 0;
    }
}

#[inline(always)]
pub fn prologue(hit: &Hit, args: &Args) {
    let Some(t) = hit.thread() else { return };
    // SAFETY: as above.
    unsafe {
        (*t).heap = args.a0;
        (*t).gc_heap = args.a0;
        (*t).gc_reason = args.a1 as u32 & 0xff;
        (*t).gc_flags = args.a2 as u32 & 0xff;
    }
    if let Some(iso) = hit.iso_or_new(args.a0) {
        // SAFETY: points into a map value.
        unsafe {
            atomic::add(&raw mut (*iso).begun, 1);
            // An isolate that moved to another thread allocates where its books are not kept.
            if (*iso).tid != hit.pid_tgid as u32 {
                (*iso).set.breaks += 1;
            }
        }
    }
}

#[inline(always)]
pub fn kind(hit: &Hit, heap: u64, kind: usize) {
    let Some(t) = hit.thread() else { return };
    // SAFETY: points into a map value that only this thread writes.
    let (reason, flags) = unsafe {
        (*t).gc_kind = kind as u32 + 1;
        ((*t).gc_reason as usize, (*t).gc_flags)
    };
    let Some(iso) = hit.iso_or_new(heap) else {
        return;
    };
    if kind >= KINDS {
        return;
    }
    let reason = if reason < REASONS {
        reason
    } else {
        REASONS - 1
    };
    // SAFETY: points into a map value; the indices are bounded above.
    unsafe {
        atomic::add((&raw mut (*iso).gcs).cast::<u64>().add(kind), 1);
        atomic::add(
            (&raw mut (*iso).reasons)
                .cast::<u64>()
                .add(kind * REASONS + reason),
            1,
        );
        if u64::from(flags) & FLAG_FORCED != 0 {
            atomic::add((&raw mut (*iso).forced).cast::<u64>().add(kind), 1);
        }
    }
}

#[inline(always)]
pub fn pause_stop(hit: &Hit) {
    let Some(t) = hit.thread() else { return };
    let now = now_ns();
    // SAFETY: points into a map value that only this thread writes.
    let (start, heap) = unsafe { ((*t).pause_start_ns, (*t).gc_heap) };
    if start == 0 || heap == 0 {
        hit.lose();
        return;
    }
    // SAFETY: as above.
    unsafe { (*t).pause_start_ns = 0 };
    alloc::rebase_all(hit, t);
    let Some(iso) = hit.iso(heap) else {
        hit.lose();
        return;
    };
    let pause = now - start;
    // SAFETY: points into a map value; an isolate pauses on one thread at a time.
    unsafe {
        (*iso).pauses += 1;
        (*iso).pause_ns_total += pause;
        if pause > (*iso).pause_ns_max {
            (*iso).pause_ns_max = pause;
        }
        let bucket = atomic::opaque(hist_bucket(pause));
        if bucket < HIST {
            *(&raw mut (*iso).pause_hist).cast::<u32>().add(bucket) += 1;
        }
        timeline(hit, iso, start, pause, t);
    }
}

/// # Safety
/// `iso` and `t` must point into map values.
#[inline(always)]
unsafe fn timeline(hit: &Hit, iso: *mut Iso, start: u64, pause: u64, t: *mut Thread) {
    let Some(mut slot) = TIMELINE.reserve::<GcEvent>(0) else {
        lose!(timeline);
        return;
    };
    // SAFETY: the caller vouches for both.
    let event = unsafe {
        GcEvent {
            proc_id: hit.proc_id(),
            iso_seq: (*iso).seq,
            t_ns: start,
            pause_ns: pause,
            kind: (*t).gc_kind,
            reason: (*t).gc_reason,
            flags: (*t).gc_flags,
            tgid: (hit.pid_tgid >> 32) as u32,
            heap_before: (*t).pause_size_first,
            heap_after: (*t).pause_size_last,
        }
    };
    slot.write(event);
    // Waking the supervisor here would put it, and a context switch, into the pause being measured.
    slot.submit(u64::from(BPF_RB_NO_WAKEUP));
}

#[inline(always)]
pub fn incremental_start(hit: &Hit, args: &Args) {
    const MINOR_COLLECTOR: u32 = 2;
    let Some(t) = hit.thread() else { return };
    // SAFETY: points into a map value that only this thread writes.
    let heap = unsafe { (*t).heap };
    let Some(iso) = hit.iso(heap) else {
        hit.lose();
        return;
    };
    // SAFETY: points into a map value.
    unsafe {
        if args.a2 as u32 == MINOR_COLLECTOR {
            atomic::add(&raw mut (*iso).minor_incremental_starts, 1);
        } else {
            atomic::add(&raw mut (*iso).incremental_starts, 1);
        }
    }
}
