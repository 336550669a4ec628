//! Isolates, large objects and pages. V8's `BaseSpace` starts `{vtable, Heap* heap_, AllocationSpace
//! id_}` on every supported version (src/heap/base-space.h, before V8 11 in src/heap/spaces.h), so a
//! space names both its isolate and itself.

use crate::{
    alloc, atomic,
    maps::{DEAD_ISOS, Hit, ISOS, LARGE, lose, now_ns},
    regs::{Args, read_user},
};
use perf_gate_ebpf::{AddrKey, HeapKey, Iso, SPACES};

const SPACE_HEAP: u64 = 8;
const SPACE_ID: u64 = 16;

pub fn bury_iso(key: HeapKey, iso: *mut Iso) {
    // SAFETY: points into a map value.
    let seq = unsafe {
        (*iso).gone_ns = now_ns();
        (*iso).seq
    };
    // SAFETY: as above.
    if DEAD_ISOS.insert(seq, unsafe { &*iso }, 0).is_err() {
        lose!(graves);
    }
    let _ = ISOS.remove(key);
}

#[inline(always)]
pub fn set_up(hit: &Hit, heap: u64) {
    let key = HeapKey {
        proc_id: hit.proc_id(),
        heap,
    };
    // An allocator may hand out the address of a heap whose end was not seen.
    if let Some(old) = ISOS.get_ptr_mut(key) {
        bury_iso(key, old);
    }
    if hit.new_iso(heap).is_some()
        && let Some(t) = hit.thread()
    {
        // SAFETY: points into a map value that only this thread writes.
        unsafe { (*t).heap = heap }
    }
}

#[inline(always)]
pub fn tear_down(hit: &Hit, heap: u64) {
    alloc::finish(hit);
    let key = HeapKey {
        proc_id: hit.proc_id(),
        heap,
    };
    if let Some(iso) = ISOS.get_ptr_mut(key) {
        bury_iso(key, iso);
    }
}

/// V8 has summed up the objects of this thread's isolate.
#[inline(always)]
pub fn sized(hit: &Hit, bytes: u64) {
    if let Some(t) = hit.thread() {
        // SAFETY: both point into map values of this thread.
        unsafe {
            if let Some(iso) = hit.iso((*t).heap)
                && (*iso).tid == hit.pid_tgid as u32
            {
                (*iso).live_bytes = bytes;
                (*iso).live_reads += 1;
            }
            if (*t).pause_start_ns != 0 {
                if (*t).pause_size_first == 0 {
                    (*t).pause_size_first = bytes;
                } else {
                    (*t).pause_size_last = bytes;
                }
            }
        }
    }
}

#[inline(always)]
pub fn promote(hit: &Hit) {
    if let Some(t) = hit.thread() {
        // SAFETY: points into a map value that only this thread writes.
        unsafe { (*t).promoting = 1 }
    }
}

#[inline(always)]
pub fn large_add(hit: &Hit, args: &Args) {
    let Some(t) = hit.thread() else { return };
    // PromoteNewLargeObject ends in AddPage: the page moves, nothing is allocated.
    // SAFETY: points into a map value that only this thread writes.
    unsafe {
        if (*t).promoting != 0 {
            (*t).promoting = 0;
            return;
        }
    }
    let size = args.a2;
    let iso = read_user(args.a0 + SPACE_HEAP).and_then(|heap| hit.iso(heap));
    let Some(iso) = iso else {
        hit.lose();
        return;
    };
    // SAFETY: both point into map values.
    unsafe {
        if (*iso).tid == hit.pid_tgid as u32 {
            atomic::add(&raw mut (*iso).large_count, 1);
            atomic::add(&raw mut (*iso).large_bytes, size);
        } else {
            atomic::add(&raw mut (*iso).background_bytes, size);
        }
        atomic::add(&raw mut (*hit.proc).large_live_bytes, size);
    }
    let key = AddrKey {
        proc_id: hit.proc_id(),
        addr: args.a1,
    };
    if LARGE.insert(key, size, 0).is_err() {
        hit.lose();
    }
}

#[inline(always)]
pub fn page_alloc(hit: &Hit, space: u64) {
    // SAFETY: points into a map value.
    unsafe { atomic::add(&raw mut (*hit.proc).pages_alloc, 1) }
    let heap = read_user(space + SPACE_HEAP);
    let id = read_user(space + SPACE_ID);
    let (Some(heap), Some(id)) = (heap, id) else {
        hit.lose();
        return;
    };
    let id = atomic::opaque(id as u32 as usize);
    let Some(iso) = hit.iso(heap) else {
        hit.lose();
        return;
    };
    if id < SPACES {
        // SAFETY: points into a map value; the index is bounded.
        unsafe { atomic::add((&raw mut (*iso).pages).cast::<u64>().add(id), 1) }
    } else {
        hit.lose();
    }
}

#[inline(always)]
pub fn page_free(hit: &Hit, page: u64) {
    let key = AddrKey {
        proc_id: hit.proc_id(),
        addr: page,
    };
    // SAFETY: all point into map values.
    unsafe {
        if let Some(size) = LARGE.get_ptr(key) {
            let size = *size;
            if LARGE.remove(key).is_ok() {
                atomic::add(&raw mut (*hit.proc).large_live_bytes, size.wrapping_neg());
            }
        } else {
            atomic::add(&raw mut (*hit.proc).pages_free, 1);
        }
    }
}
