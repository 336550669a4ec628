//! Atomic additions. The compiler's own are useless here: the BPF target is declared
//! single-threaded, so `core`'s atomics become plain loads and stores, and two CPUs would lose counts.
//!
//! And an index that stays what it is: the compiler likes to fold a bounded index into the address
//! computed from it, where the verifier no longer sees the bound.

use core::arch::asm;

/// `*p += v`, atomically.
///
/// # Safety
/// `p` must point to an aligned word that the program may write.
#[inline(always)]
pub unsafe fn add(p: *mut u64, v: u64) {
    // SAFETY: the caller vouches for `p`.
    unsafe { asm!("lock *(u64 *)({p} + 0) += {v}", p = in(reg) p, v = in(reg) v) }
}

/// `*p += v`, atomically; returns what was there before.
///
/// # Safety
/// As [`add`].
#[inline(always)]
pub unsafe fn fetch_add(p: *mut u64, v: u64) -> u64 {
    let mut old = v;
    // SAFETY: the caller vouches for `p`.
    unsafe {
        asm!("{v} = atomic_fetch_add((u64 *)({p} + 0), {v})", p = in(reg) p, v = inout(reg) old);
    }
    old
}

/// `index`, of which the compiler knows nothing any more: compare it after this call, then use it.
#[inline(always)]
pub fn opaque(index: usize) -> usize {
    let mut out = index as u64;
    // SAFETY: changes nothing.
    unsafe { asm!("{i} = {i}", i = inout(reg) out) }
    out as usize
}
