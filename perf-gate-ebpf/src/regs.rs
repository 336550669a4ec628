//! Operands of a probed function, by the slots that the cookie names.

use aya_ebpf::{bindings::pt_regs, helpers::bpf_probe_read_user};
use perf_gate_ebpf::{Cookie, NO_ARG, STACK_ARG};

/// The operands of one hit; 0 where the cookie names none.
pub struct Args {
    pub a0: u64,
    pub a1: u64,
    pub a2: u64,
    pub a3: u64,
}

macro_rules! reg {
    // Volatile, so that the compiler cannot turn the choice of a register into arithmetic on the
    // context pointer, which the verifier refuses.
    ($regs:expr, $name:ident) => {
        core::ptr::read_volatile(&raw const (*$regs).$name)
    };
}

impl Args {
    /// # Safety
    /// `regs` must be the context of a uprobe at a function's entry.
    #[inline(always)]
    pub unsafe fn read(regs: *const pt_regs, cookie: Cookie) -> Self {
        // SAFETY: the caller vouches for `regs`.
        let file = unsafe {
            [
                reg!(regs, rdi),
                reg!(regs, rsi),
                reg!(regs, rdx),
                reg!(regs, rcx),
                reg!(regs, r8),
                reg!(regs, r9),
            ]
        };
        // SAFETY: as above.
        let rsp = unsafe { reg!(regs, rsp) };
        Self {
            a0: pick(&file, rsp, cookie.slot(0)),
            a1: pick(&file, rsp, cookie.slot(1)),
            a2: pick(&file, rsp, cookie.slot(2)),
            a3: pick(&file, rsp, cookie.slot(3)),
        }
    }
}

#[inline(always)]
fn pick(file: &[u64; 6], rsp: u64, slot: u8) -> u64 {
    match slot {
        0 => file[0],
        1 => file[1],
        2 => file[2],
        3 => file[3],
        4 => file[4],
        5 => file[5],
        NO_ARG => 0,
        n => read_user(rsp + 8 + 8 * u64::from(n - STACK_ARG)).unwrap_or(0),
    }
}

/// rax and rdx at a function's return.
///
/// # Safety
/// `regs` must be the context of a uretprobe.
#[inline(always)]
pub unsafe fn returned(regs: *const pt_regs) -> (u64, u64) {
    // SAFETY: the caller vouches for `regs`.
    unsafe { (reg!(regs, rax), reg!(regs, rdx)) }
}

/// One word of the watched process's memory.
#[inline(always)]
pub fn read_user(addr: u64) -> Option<u64> {
    // SAFETY: the helper checks the address and fails instead of faulting.
    unsafe { bpf_probe_read_user(addr as *const u64) }.ok()
}
