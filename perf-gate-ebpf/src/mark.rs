//! Windows. A marker is a `futimens` call on the descriptor that the process introduced: the first time
//! carries what is asked and the window's id, the second its scale. All of the isolate's figures are
//! noted in a map entry at the begin, and replaced by the differences at the end: a window's figures
//! come in one piece and cannot be dropped.

use crate::{
    alloc, atomic,
    maps::{BLANK_WINDOW, CONFIG, Hit, MARKERS, WINDOWS, now_ns},
    regs::Args,
};
use aya_ebpf::helpers::bpf_probe_read_user;
use perf_gate_ebpf::{
    AddrKey, Figures, Iso, KINDS, LABS, Lab, MARK_ASK, MARK_BEGIN, MARK_BELOW, MARK_END,
    MARK_HELLO, SPACES, Window, WindowKey,
};

#[inline(always)]
pub fn marker(hit: &Hit, args: &Args) {
    let key = AddrKey {
        proc_id: hit.proc_id(),
        addr: u64::from(args.a0 as u32),
    };
    // {seconds, nanoseconds} of two times.
    // SAFETY: the helper checks the address and fails instead of faulting.
    let Ok([what, 0, scale, 0]) = (unsafe { bpf_probe_read_user(args.a1 as *const [u64; 4]) })
    else {
        return;
    };
    if what >= MARK_BELOW {
        return;
    }
    if MARKERS.get_ptr(key).is_none() {
        if what & 3 == MARK_HELLO
            && let Some(config) = CONFIG.get(0)
            && config.nonce != 0
            && config.nonce == scale
            && MARKERS.insert(key, 1, 0).is_err()
        {
            hit.lose();
        }
        return;
    }
    let Some(t) = hit.thread() else { return };
    // SAFETY: points into a map value of this thread.
    unsafe {
        // JavaScript never runs inside a boundary: a return was missed.
        if (*t).depth != 0 {
            (*t).depth = 0;
            if let Some(iso) = hit.iso((*t).heap) {
                (*iso).set.breaks += 1;
            }
        }
    }
    alloc::close_all(hit, t);
    // SAFETY: as above.
    let Some(iso) = hit.iso(unsafe { (*t).heap }) else {
        hit.lose();
        return;
    };
    match what & 3 {
        MARK_BEGIN => begin(hit, iso, what >> 2, scale),
        MARK_END => end(hit, iso),
        // SAFETY: points into a map value of this thread's isolate.
        MARK_ASK => unsafe { (*iso).token = what >> 2 },
        _ => {}
    }
}

#[inline(always)]
fn begin(hit: &Hit, iso: *mut Iso, id: u64, scale: u64) {
    // SAFETY: points into a map value of this thread's isolate.
    let key = unsafe {
        if (*iso).open_window != 0 {
            (*iso).bad_markers += 1;
            return;
        }
        WindowKey {
            iso_seq: (*iso).seq,
            number: (*iso).windows + 1,
        }
    };
    let Some(blank) = BLANK_WINDOW.get(0) else {
        return;
    };
    let _ = WINDOWS.insert(key, blank, 0);
    let Some(w) = WINDOWS.get_ptr_mut(key) else {
        hit.lose();
        return;
    };
    // SAFETY: both point into map values.
    unsafe {
        (*iso).windows = key.number;
        (*iso).open_window = key.number;
        (*w).proc_id = (*iso).proc_id;
        (*w).id = id;
        (*w).scale = scale;
        note(hit, iso, &raw mut (*w).figures, false);
        (*w).begin_ns = (*w).figures.t_ns;
    }
}

#[inline(always)]
fn end(hit: &Hit, iso: *mut Iso) {
    // SAFETY: points into a map value of this thread's isolate.
    let key = unsafe {
        if (*iso).open_window == 0 {
            (*iso).bad_markers += 1;
            return;
        }
        WindowKey {
            iso_seq: (*iso).seq,
            number: (*iso).open_window,
        }
    };
    let Some(w) = WINDOWS.get_ptr_mut(key) else {
        hit.lose();
        return;
    };
    // SAFETY: both point into map values.
    unsafe {
        (*iso).open_window = 0;
        note(hit, iso, &raw mut (*w).figures, true);
        (*w).closed = 1;
    }
}

/// Writes the isolate's figures, or what they have grown by since they were written.
///
/// # Safety
/// All must point into map values.
#[inline(always)]
unsafe fn note(hit: &Hit, iso: *mut Iso, to: *mut Figures, difference: bool) {
    macro_rules! put {
        ($to:expr, $now:expr) => {{
            let now = $now;
            $to = if difference { now - $to } else { now };
        }};
    }
    // SAFETY: the caller vouches for the pointers; indices are bounded.
    unsafe {
        let spaces = (&raw mut (*to).spaces).cast::<u64>();
        if difference {
            for i in 0..SPACES {
                let p = spaces.add(i);
                *p = (*p).wrapping_neg();
            }
        }
        for i in 0..LABS {
            if i as u64 >= (*iso).set.count {
                break;
            }
            let lab = (&raw mut (*iso).set.labs).cast::<Lab>().add(i);
            let space = atomic::opaque((*lab).space as usize);
            if space < SPACES {
                *spaces.add(space) += (*lab).total;
            }
        }
        let gcs = (&raw mut (*to).gcs).cast::<u64>();
        for kind in 0..KINDS {
            put!(
                *gcs.add(kind),
                *(&raw mut (*iso).gcs).cast::<u64>().add(kind)
            );
        }
        put!((*to).large_bytes, (*iso).large_bytes);
        put!((*to).large_count, (*iso).large_count);
        put!((*to).incremental_starts, (*iso).incremental_starts);
        put!((*to).pause_ns_total, (*iso).pause_ns_total);
        put!((*to).breaks, (*iso).set.breaks);
        let p = hit.proc;
        put!((*to).ext_alloc_bytes, (*p).external_allocated());
        put!((*to).ext_free_bytes, (*p).external_freed());
        put!((*to).string_alloc_bytes, (*p).string_alloc_bytes);
        put!((*to).t_ns, now_ns());
    }
}

const _: () = assert!(size_of::<Window>() < 512);
