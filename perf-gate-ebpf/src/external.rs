//! Backing-store memory. What goes through node's allocator is counted per process, because the
//! collector frees from threads of its own. What bypasses it (resizable buffers, growable shared
//! buffers, WebAssembly memory) is followed store by store: its destructor says nothing of how it
//! was made. A size is counted at the return, and only when the call succeeded.

use crate::{
    atomic,
    maps::{Hit, STORES},
    regs::{Args, read_user},
};
use perf_gate_ebpf::{AddrKey, Proc};

const WASM_PAGE: u64 = 65_536;
/// Marks an operand that was consumed; a real size never has this value.
const NONE: u64 = u64::MAX;

/// # Safety
/// `proc` must point into a map value.
#[inline(always)]
unsafe fn allocated(proc: *mut Proc, bytes: u64) {
    // SAFETY: the caller vouches for it.
    unsafe {
        atomic::add(&raw mut (*proc).ext_alloc_count, 1);
        atomic::add(&raw mut (*proc).ext_alloc_bytes, bytes);
    }
}

/// # Safety
/// `proc` must point into a map value.
#[inline(always)]
unsafe fn freed(proc: *mut Proc, bytes: u64) {
    // SAFETY: the caller vouches for it.
    unsafe {
        atomic::add(&raw mut (*proc).ext_free_count, 1);
        atomic::add(&raw mut (*proc).ext_free_bytes, bytes);
    }
}

#[inline(always)]
pub fn alloc_entry(hit: &Hit, size: u64) {
    if let Some(t) = hit.thread() {
        // SAFETY: points into a map value that only this thread writes.
        unsafe { (*t).buffer_size = size }
    }
}

#[inline(always)]
pub fn alloc_return(hit: &Hit, pointer: u64) {
    let Some(t) = hit.thread() else { return };
    // SAFETY: as above; the process record is a map value too.
    unsafe {
        let size = (*t).buffer_size;
        (*t).buffer_size = NONE;
        if size == NONE {
            hit.lose();
        } else if pointer != 0 {
            allocated(hit.proc, size);
        }
    }
}

#[inline(always)]
pub fn free(hit: &Hit, size: u64) {
    // SAFETY: points into a map value.
    unsafe { freed(hit.proc, size) }
}

#[inline(always)]
pub fn realloc_entry(hit: &Hit, args: &Args) {
    if let Some(t) = hit.thread() {
        // SAFETY: points into a map value that only this thread writes.
        unsafe {
            (*t).realloc_old = args.a0;
            (*t).realloc_new = args.a1;
        }
    }
}

#[inline(always)]
pub fn realloc_return(hit: &Hit, pointer: u64) {
    let Some(t) = hit.thread() else { return };
    // SAFETY: as above.
    unsafe {
        let (old, new) = ((*t).realloc_old, (*t).realloc_new);
        if pointer != 0 {
            freed(hit.proc, old);
            allocated(hit.proc, new);
        }
    }
}

#[inline(always)]
pub fn reserve_entry(hit: &Hit, args: &Args) {
    if let Some(t) = hit.thread() {
        // SAFETY: points into a map value that only this thread writes.
        unsafe {
            (*t).reserve_ret = args.a0;
            (*t).reserve_len = args.a1;
        }
    }
}

#[inline(always)]
pub fn reserve_return(hit: &Hit) {
    let Some(t) = hit.thread() else { return };
    // SAFETY: as above.
    let (slot, len) = unsafe { ((*t).reserve_ret, (*t).reserve_len) };
    let Some(store) = read_user(slot) else {
        hit.lose();
        return;
    };
    if store == 0 {
        return;
    }
    let key = AddrKey {
        proc_id: hit.proc_id(),
        addr: store,
    };
    if STORES.insert(key, len, 0).is_err() {
        hit.lose();
        return;
    }
    // SAFETY: points into a map value.
    unsafe { atomic::add(&raw mut (*hit.proc).store_alloc_bytes, len) }
}

#[inline(always)]
pub fn resize_entry(hit: &Hit, args: &Args) {
    if let Some(t) = hit.thread() {
        // SAFETY: points into a map value that only this thread writes.
        unsafe {
            (*t).resize_store = args.a0;
            (*t).resize_len = args.a1;
        }
    }
}

#[inline(always)]
pub fn resize_return(hit: &Hit, result: u64) {
    let Some(t) = hit.thread() else { return };
    if result as u32 & 0xff != 0 {
        return;
    }
    // SAFETY: as above.
    let (store, len) = unsafe { ((*t).resize_store, (*t).resize_len) };
    set_len(hit, store, len);
}

#[inline(always)]
pub fn grow_entry(hit: &Hit, args: &Args) {
    if let Some(t) = hit.thread() {
        // SAFETY: points into a map value that only this thread writes.
        unsafe {
            (*t).grow_store = args.a0;
            (*t).grow_delta = args.a1;
        }
    }
}

#[inline(always)]
pub fn grow_return(hit: &Hit, has_value: u64) {
    let Some(t) = hit.thread() else { return };
    if has_value & 0xff == 0 {
        return;
    }
    // SAFETY: as above.
    let (store, delta) = unsafe { ((*t).grow_store, (*t).grow_delta) };
    let key = AddrKey {
        proc_id: hit.proc_id(),
        addr: store,
    };
    match STORES.get_ptr(key) {
        // SAFETY: points into a map value.
        Some(old) => set_len(hit, store, unsafe { *old } + delta * WASM_PAGE),
        None => hit.lose(),
    }
}

#[inline(always)]
fn set_len(hit: &Hit, store: u64, len: u64) {
    let key = AddrKey {
        proc_id: hit.proc_id(),
        addr: store,
    };
    let Some(slot) = STORES.get_ptr_mut(key) else {
        hit.lose();
        return;
    };
    // SAFETY: all point into map values; V8 serialises changes of one store's length.
    unsafe {
        let old = *slot;
        *slot = len;
        if len >= old {
            atomic::add(&raw mut (*hit.proc).store_alloc_bytes, len - old);
        } else {
            atomic::add(&raw mut (*hit.proc).store_free_bytes, old - len);
        }
    }
}

#[inline(always)]
pub fn destroy(hit: &Hit, store: u64) {
    let key = AddrKey {
        proc_id: hit.proc_id(),
        addr: store,
    };
    let Some(len) = STORES.get_ptr(key) else {
        return;
    };
    // SAFETY: points into a map value.
    let len = unsafe { *len };
    if STORES.remove(key).is_ok() {
        // SAFETY: as above.
        unsafe { atomic::add(&raw mut (*hit.proc).store_free_bytes, len) }
    }
}
