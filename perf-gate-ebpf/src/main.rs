//! The kernel side: one program for every function entry, one for every return, three for the
//! process tree. Totals live in maps; two ring buffers carry what may be late (timeline) and what
//! the supervisor must act on (control).
//!
//! Which function a hit came from, and in which registers its operands lie, is in the attach cookie
//! ([`perf_gate_ebpf::Cookie`]): nothing here knows a V8 version. User memory is read, kernel memory
//! is not, but for two words of `task_struct` at fork.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod alloc;
mod atomic;
mod external;
mod follow;
mod gc;
mod heap;
mod maps;
mod mark;
mod regs;
mod strings;

use aya_ebpf::{
    EbpfContext as _,
    helpers::{bpf_get_attach_cookie, bpf_get_current_pid_tgid},
    macros::{raw_tracepoint, uprobe, uretprobe},
    programs::{ProbeContext, RawTracePointContext, RetProbeContext},
};
use maps::{Hit, OPS_COUNT, PROCS, SCOPED};
use perf_gate_ebpf::{Cookie, GROW_FLAG_IN_RAX};
use regs::Args;

/// Finds the watched process that was hit, or nothing: every other process ends here.
#[inline(always)]
fn admit(cookie: u64) -> Option<Hit> {
    let pid_tgid = bpf_get_current_pid_tgid();
    let tgid = (pid_tgid >> 32) as u32;
    let proc = PROCS.get_ptr_mut(tgid)?;
    if cookie & Cookie::WIDE != 0 && SCOPED.get_ptr(tgid).is_some() {
        return None;
    }
    let count = OPS_COUNT.get_ptr_mut(u32::from(Cookie(cookie).op()))?;
    // SAFETY: both point into map values, which stay mapped while the program runs.
    unsafe {
        atomic::add(&raw mut (*proc).hits, 1);
        atomic::add(&raw mut (*count).hits, 1);
    }
    Some(Hit {
        pid_tgid,
        proc,
        count,
    })
}

#[uprobe]
fn on_entry(ctx: ProbeContext) -> u32 {
    // SAFETY: the context is the one the kernel passed in.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    if let Some(hit) = admit(cookie) {
        // SAFETY: a uprobe's context is a `pt_regs`.
        let args = unsafe { Args::read(ctx.regs, Cookie(cookie)) };
        dispatch_entry(&hit, Cookie(cookie), &args);
    }
    0
}

#[inline(always)]
fn dispatch_entry(hit: &Hit, cookie: Cookie, args: &Args) {
    use perf_gate_ebpf::Op as O;
    const SETUP: u8 = O::HeapSetUp as u8;
    const TEARDOWN: u8 = O::HeapTearDown as u8;
    const PAUSE_START: u8 = O::PauseStart as u8;
    const PAUSE_STOP: u8 = O::PauseStop as u8;
    const PROLOGUE: u8 = O::GcPrologue as u8;
    const SCAVENGE: u8 = O::GcScavenge as u8;
    const MARK_COMPACT: u8 = O::GcMarkCompact as u8;
    const MINOR: u8 = O::GcMinor as u8;
    const INCREMENTAL: u8 = O::IncrementalStart as u8;
    const BUFFER_ALLOC: u8 = O::BufferAlloc as u8;
    const BUFFER_FREE: u8 = O::BufferFree as u8;
    const BUFFER_REALLOC: u8 = O::BufferRealloc as u8;
    const RESERVE: u8 = O::StoreReserve as u8;
    const RESIZE: u8 = O::StoreResize as u8;
    const GROW: u8 = O::WasmGrow as u8;
    const DESTROY: u8 = O::StoreDestroy as u8;
    const LARGE_ADD: u8 = O::LargeAdd as u8;
    const PROMOTE: u8 = O::LargePromote as u8;
    const PAGE_ALLOC: u8 = O::PageAlloc as u8;
    const PAGE_FREE: u8 = O::PageFree as u8;
    const LAB_NEW: u8 = O::LabOfNewSpace as u8;
    const LAB_PAGED: u8 = O::LabOfPagedSpace as u8;
    const LAB_ALLOCATOR: u8 = O::LabOfAllocator as u8;
    const BOUNDARY: u8 = O::LabBoundary as u8;
    const MARKER: u8 = O::Marker as u8;
    const EXIT: u8 = O::ProcessExit as u8;
    const LOCAL_HEAP_GONE: u8 = O::LocalHeapGone as u8;
    const STRING_ALLOC: u8 = O::StringAlloc as u8;
    const STRING_FREE: u8 = O::StringFree as u8;
    match cookie.op() {
        SETUP => heap::set_up(hit, args.a0),
        TEARDOWN => heap::tear_down(hit, args.a0),
        PAUSE_START => gc::pause_start(hit),
        PAUSE_STOP => gc::pause_stop(hit),
        PROLOGUE => gc::prologue(hit, args),
        SCAVENGE => gc::kind(hit, args.a0, perf_gate_ebpf::SCAVENGE),
        MARK_COMPACT => gc::kind(hit, args.a0, perf_gate_ebpf::MARK_COMPACT),
        MINOR => gc::kind(hit, args.a0, perf_gate_ebpf::MINOR_MARK_SWEEP),
        INCREMENTAL => {
            gc::incremental_start(hit, args);
            alloc::enter(hit);
        }
        BUFFER_ALLOC => external::alloc_entry(hit, args.a0),
        BUFFER_FREE => external::free(hit, args.a0),
        BUFFER_REALLOC => external::realloc_entry(hit, args),
        RESERVE => external::reserve_entry(hit, args),
        RESIZE => external::resize_entry(hit, args),
        GROW => external::grow_entry(hit, args),
        DESTROY => external::destroy(hit, args.a0),
        LARGE_ADD => heap::large_add(hit, args),
        PROMOTE => heap::promote(hit),
        PAGE_ALLOC => heap::page_alloc(hit, args.a0),
        PAGE_FREE => heap::page_free(hit, args.a0),
        LAB_NEW => alloc::new_space(hit, args, cookie.immediate()),
        LAB_PAGED => alloc::paged_space(hit, args),
        LAB_ALLOCATOR => alloc::allocator(hit, args, cookie.immediate()),
        BOUNDARY => alloc::enter(hit),
        MARKER => mark::marker(hit, args),
        EXIT => alloc::finish(hit),
        LOCAL_HEAP_GONE => alloc::local_heap_gone(hit, args.a0),
        STRING_ALLOC => strings::alloc_entry(hit, args, cookie.immediate()),
        STRING_FREE => strings::free(hit, args, cookie.immediate()),
        _ => {}
    }
}

#[uretprobe]
fn on_return(ctx: RetProbeContext) -> u32 {
    use perf_gate_ebpf::Op as O;
    const BUFFER_ALLOC: u8 = O::BufferAlloc as u8;
    const BUFFER_REALLOC: u8 = O::BufferRealloc as u8;
    const RESERVE: u8 = O::StoreReserve as u8;
    const RESIZE: u8 = O::StoreResize as u8;
    const GROW: u8 = O::WasmGrow as u8;
    const BOUNDARY: u8 = O::LabBoundary as u8;
    const INCREMENTAL: u8 = O::IncrementalStart as u8;
    const HEAP_SIZE: u8 = O::HeapSize as u8;
    const STRING_ALLOC: u8 = O::StringAlloc as u8;
    // SAFETY: the context is the one the kernel passed in.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let Some(hit) = admit(cookie) else { return 0 };
    // SAFETY: a uretprobe's context is a `pt_regs`.
    let (rax, rdx) = unsafe { regs::returned(ctx.regs) };
    match Cookie(cookie).op() {
        BOUNDARY | INCREMENTAL => alloc::leave(&hit),
        HEAP_SIZE => heap::sized(&hit, rax),
        STRING_ALLOC => strings::alloc_return(&hit, rax),
        BUFFER_ALLOC => external::alloc_return(&hit, rax),
        BUFFER_REALLOC => external::realloc_return(&hit, rax),
        RESERVE => external::reserve_return(&hit),
        RESIZE => external::resize_return(&hit, rax),
        GROW => {
            // The flag of the returned optional lies where the cookie's third slot says.
            let flag = if Cookie(cookie).slot(2) == GROW_FLAG_IN_RAX {
                rax
            } else {
                rdx
            };
            external::grow_return(&hit, flag);
        }
        _ => {}
    }
    0
}

#[raw_tracepoint(tracepoint = "sched_process_fork")]
fn on_fork(ctx: RawTracePointContext) -> i32 {
    follow::fork(&ctx);
    0
}

#[raw_tracepoint(tracepoint = "sched_process_exec")]
fn on_exec(ctx: RawTracePointContext) -> i32 {
    follow::exec(&ctx);
    0
}

#[raw_tracepoint(tracepoint = "sched_process_exit")]
fn on_exit(ctx: RawTracePointContext) -> i32 {
    follow::exit(&ctx);
    0
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
