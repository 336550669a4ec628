//! External strings. Their characters are memory of node's, which a resource object owns from the moment
//! that V8 has made a string of it until V8 finds that string dead. Only resources that name their isolate
//! count: those of node's built-in sources do not, and their characters lie in the binary.
//!
//! Living ones are kept by size alone, how many of each: the end of a string may be told by nothing more,
//! and whatever else ends with such a size cannot make more strings end than were begun.

use crate::{
    atomic,
    maps::{Hit, STRINGS},
    regs::{Args, read_user},
};
use perf_gate_ebpf::{AddrKey, TWO_BYTE};

/// Of a resource, behind its table of functions and V8's cached pointer to its characters.
const ISOLATE: u64 = 16;

#[inline(always)]
fn bytes_of(resource: u64, immediate: u8) -> Option<u64> {
    let length = read_user(resource + u64::from(immediate & !TWO_BYTE))?;
    Some(length << (immediate & TWO_BYTE))
}

#[inline(always)]
pub fn alloc_entry(hit: &Hit, args: &Args, immediate: u8) {
    let Some(t) = hit.thread() else { return };
    let isolate = read_user(args.a1 + ISOLATE);
    let bytes = if isolate == Some(args.a0) {
        bytes_of(args.a1, immediate).unwrap_or(0)
    } else {
        0
    };
    // SAFETY: points into a map value that only this thread writes.
    unsafe { (*t).string_bytes = bytes }
}

#[inline(always)]
pub fn alloc_return(hit: &Hit, string: u64) {
    let Some(t) = hit.thread() else { return };
    // SAFETY: as above.
    let bytes = unsafe { (*t).string_bytes };
    if string == 0 || bytes == 0 {
        return;
    }
    let key = AddrKey {
        proc_id: hit.proc_id(),
        addr: bytes,
    };
    if STRINGS.get_ptr(key).is_none() {
        // Another thread may be first: what it has counted stays.
        let _ = STRINGS.insert(key, 0, aya_ebpf::bindings::BPF_NOEXIST.into());
    }
    let Some(living) = STRINGS.get_ptr_mut(key) else {
        hit.lose();
        return;
    };
    // SAFETY: both point into map values.
    unsafe {
        atomic::add(living, 1);
        atomic::add(&raw mut (*hit.proc).string_alloc_bytes, bytes);
    }
}

#[inline(always)]
pub fn free(hit: &Hit, args: &Args, immediate: u8) {
    let bytes = if immediate == 0 {
        args.a1.wrapping_neg()
    } else {
        bytes_of(args.a0, immediate).unwrap_or(0)
    };
    let key = AddrKey {
        proc_id: hit.proc_id(),
        addr: bytes,
    };
    let Some(living) = STRINGS.get_ptr_mut(key) else {
        return;
    };
    // SAFETY: both point into map values.
    unsafe {
        if *living == 0 {
            return;
        }
        atomic::add(living, 1u64.wrapping_neg());
        atomic::add(&raw mut (*hit.proc).string_free_bytes, bytes);
    }
}
