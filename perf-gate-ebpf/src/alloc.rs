//! Bytes allocated, exactly. V8 allocates by bumping `top` of a linear allocation area (LAB) and writes
//! it back; an area is replaced only inside a few functions and during collections. So the books are
//! closed (`total += top - last`) wherever an area may be replaced, and opened again (`last = top`)
//! where it has been; between two such points the difference of `top` is what was allocated.
//!
//! Whenever the books are closed outside of a boundary, `top` must still lie in the page where it was
//! left, not before it, and where there was no area none may have appeared. If not, an area was replaced
//! behind our back: that is a *break*, counted, and makes the figure unproven instead of wrong.

use crate::{
    atomic,
    maps::{BACKGROUND, BLANK_BACKGROUND, Hit},
    regs::{Args, read_user},
};
use aya_ebpf::helpers::bpf_probe_read_user;
use perf_gate_ebpf::{Background, Iso, LABS, Lab, LabSet, PAGE_BITS, Thread};

const TOP: u64 = 8;
/// Of `MainAllocator` in V8 12-14: its own area, used when none is passed in (src/heap/main-allocator.h).
const OWN_AREA: u64 = 0xa8;
const SPACE_ID: u64 = 16;
/// `last` of an area that was not looked at yet.
const UNBASED: u64 = u64::MAX;

/// Adds `top - last` of every area and leaves off at `top`.
///
/// # Safety
/// `set` must point into a map value.
#[inline(never)]
unsafe fn close(set: *mut LabSet) {
    for i in 0..LABS {
        // SAFETY: the caller vouches for `set`; the index is bounded.
        unsafe {
            if i as u64 >= (*set).count {
                break;
            }
            let lab = (&raw mut (*set).labs).cast::<Lab>().add(i);
            let Some(top) = read_user((*lab).addr + TOP) else {
                (*set).breaks += 1;
                continue;
            };
            let last = (*lab).last;
            if last == UNBASED {
                continue;
            }
            (*lab).last = top;
            if last == 0 {
                // There was no area, and outside of a boundary none may appear.
                if top != 0 {
                    (*set).breaks += 1;
                }
                continue;
            }
            // `top` may stand at the very end of its page, but then it cannot move any further.
            if top != last && (top < last || (top - 1) >> PAGE_BITS != last >> PAGE_BITS) {
                (*set).breaks += 1;
                continue;
            }
            (*lab).total += top - last;
        }
    }
}

/// Leaves off at `top` of every area without counting.
///
/// # Safety
/// As [`close`].
#[inline(never)]
unsafe fn rebase(set: *mut LabSet) {
    for i in 0..LABS {
        // SAFETY: as in `close`.
        unsafe {
            if i as u64 >= (*set).count {
                break;
            }
            let lab = (&raw mut (*set).labs).cast::<Lab>().add(i);
            (*lab).last = read_user((*lab).addr + TOP).unwrap_or(0);
        }
    }
}

/// # Safety
/// As [`close`].
#[inline(always)]
unsafe fn add(hit: &Hit, set: *mut LabSet, addr: u64, space: u32) {
    // SAFETY: the caller vouches for `set`; the index is bounded.
    unsafe {
        let n = atomic::opaque((*set).count as usize);
        if n >= LABS {
            hit.lose();
            return;
        }
        let lab = (&raw mut (*set).labs).cast::<Lab>().add(n);
        (*lab).addr = addr;
        // Being built: there is no area yet, and what stands in its place may be anything.
        (*lab).last = UNBASED;
        (*lab).space = space;
        (*set).count = n as u64 + 1;
    }
}

/// Whether the set has an area at `addr`.
///
/// # Safety
/// As [`close`].
#[inline(always)]
unsafe fn has(set: *mut LabSet, addr: u64) -> bool {
    for i in 0..LABS {
        // SAFETY: the caller vouches for `set`; the index is bounded.
        unsafe {
            let lab = (&raw mut (*set).labs).cast::<Lab>().add(i);
            if (i as u64) < (*set).count && (*lab).addr == addr {
                return true;
            }
        }
    }
    false
}

#[inline(always)]
pub fn new_space(hit: &Hit, args: &Args, space: u8) {
    if let Some(iso) = hit.iso_or_new(args.a0) {
        // SAFETY: points into a map value.
        unsafe { add(hit, &raw mut (*iso).set, args.a1, u32::from(space)) }
    }
}

#[inline(always)]
pub fn paged_space(hit: &Hit, args: &Args) {
    // Spaces of other kinds are the collector's own, for evacuation.
    if args.a3 as u32 != 0 {
        return;
    }
    if let Some(iso) = hit.iso_or_new(args.a0) {
        // SAFETY: points into a map value.
        unsafe { add(hit, &raw mut (*iso).set, args.a1, args.a2 as u32) }
    }
}

#[inline(always)]
pub fn allocator(hit: &Hit, args: &Args, main_flag: u8) {
    let local_heap = args.a1;
    // SAFETY: the helper checks the address and fails instead of faulting.
    let is_main =
        unsafe { bpf_probe_read_user((local_heap + u64::from(main_flag)) as *const u8) }.ok();
    let heap = read_user(local_heap);
    let space = read_user(args.a2 + SPACE_ID);
    let (Some(is_main), Some(heap), Some(space)) = (is_main, heap, space) else {
        hit.lose();
        return;
    };
    let addr = if args.a3 != 0 {
        args.a3
    } else {
        args.a0 + OWN_AREA
    };
    if is_main & 1 != 0 {
        if let Some(iso) = hit.iso_or_new(heap) {
            // SAFETY: points into a map value.
            unsafe { add(hit, &raw mut (*iso).set, addr, space as u32) }
        }
        return;
    }
    let Some(t) = hit.thread() else { return };
    let Some(b) = background(hit) else { return };
    // SAFETY: both point into map values of this thread.
    unsafe {
        (*t).background = 1;
        // A `LocalHeap` is built anew for every job, often where the last one was: its areas come again.
        if (*b).local_heap != local_heap || has(&raw mut (*b).set, addr) {
            settle(hit, b);
            (*b).set.count = 0;
            (*b).local_heap = local_heap;
            (*b).heap = heap;
        }
        add(hit, &raw mut (*b).set, addr, space as u32);
    }
}

#[inline(always)]
fn background(hit: &Hit) -> Option<*mut Background> {
    if let Some(b) = BACKGROUND.get_ptr_mut(hit.pid_tgid) {
        return Some(b);
    }
    let blank = BLANK_BACKGROUND.get(0)?;
    let _ = BACKGROUND.insert(hit.pid_tgid, blank, 0);
    let b = BACKGROUND.get_ptr_mut(hit.pid_tgid);
    if b.is_none() {
        hit.lose();
    }
    b
}

/// Hands what a background thread has counted to its isolate.
///
/// # Safety
/// `b` must point into a map value of this thread.
#[inline(always)]
unsafe fn settle(hit: &Hit, b: *mut Background) {
    // SAFETY: the caller vouches for `b`; the index is bounded.
    unsafe {
        let mut bytes = 0;
        for i in 0..LABS {
            let lab = (&raw mut (*b).set.labs).cast::<Lab>().add(i);
            bytes += (*lab).total;
            (*lab).total = 0;
        }
        if let Some(iso) = hit.iso((*b).heap) {
            atomic::add(&raw mut (*iso).background_bytes, bytes);
        }
    }
}

#[inline(always)]
fn own(hit: &Hit, t: *mut Thread) -> Option<*mut Iso> {
    // SAFETY: points into a map value of this thread.
    let iso = hit.iso(unsafe { (*t).heap })?;
    // Another thread's isolate has its own books.
    // SAFETY: points into a map value.
    if unsafe { (*iso).tid } == hit.pid_tgid as u32 {
        Some(iso)
    } else {
        None
    }
}

/// Closes this thread's books, unless a boundary or a pause has them closed already.
#[inline(always)]
pub fn close_all(hit: &Hit, t: *mut Thread) {
    // SAFETY: all point into map values of this thread.
    unsafe {
        if (*t).depth != 0 || (*t).pause_start_ns != 0 {
            return;
        }
        if (*t).background != 0 {
            if let Some(b) = BACKGROUND.get_ptr_mut(hit.pid_tgid) {
                close(&raw mut (*b).set);
                settle(hit, b);
            }
        } else if let Some(iso) = own(hit, t) {
            close(&raw mut (*iso).set);
        }
    }
}

#[inline(always)]
pub fn rebase_all(hit: &Hit, t: *mut Thread) {
    // SAFETY: as above.
    unsafe {
        if (*t).depth != 0 || (*t).pause_start_ns != 0 {
            return;
        }
        if (*t).background != 0 {
            if let Some(b) = BACKGROUND.get_ptr_mut(hit.pid_tgid) {
                rebase(&raw mut (*b).set);
            }
        } else if let Some(iso) = own(hit, t) {
            rebase(&raw mut (*iso).set);
        }
    }
}

#[inline(always)]
pub fn enter(hit: &Hit) {
    let Some(t) = hit.thread() else { return };
    close_all(hit, t);
    // SAFETY: points into a map value of this thread.
    unsafe { (*t).depth += 1 }
}

#[inline(always)]
pub fn leave(hit: &Hit) {
    let Some(t) = hit.thread() else { return };
    // SAFETY: points into a map value of this thread.
    unsafe {
        // The entry may have come before the probes did.
        if (*t).depth == 0 {
            return;
        }
        (*t).depth -= 1;
    }
    rebase_all(hit, t);
}

/// A background thread's areas end; what it does next (sweeping, evacuating) is not allocation.
#[inline(always)]
pub fn local_heap_gone(hit: &Hit, local_heap: u64) {
    let Some(t) = hit.thread() else { return };
    // SAFETY: all point into map values of this thread.
    unsafe {
        if (*t).background == 0 {
            return;
        }
        let Some(b) = BACKGROUND.get_ptr_mut(hit.pid_tgid) else {
            return;
        };
        if (*b).local_heap == local_heap {
            close_all(hit, t);
            (*b).set.count = 0;
            (*b).local_heap = 0;
            (*t).background = 0;
        }
    }
}

/// The last look at this thread's isolate.
#[inline(always)]
pub fn finish(hit: &Hit) {
    let Some(t) = hit.thread() else { return };
    close_all(hit, t);
    if let Some(iso) = own(hit, t) {
        // SAFETY: points into a map value.
        unsafe { (*iso).complete = 1 }
    }
}
