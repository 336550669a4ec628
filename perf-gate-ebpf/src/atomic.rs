//! Atomic additions. The compiler's own are useless here: the BPF target is declared
//! single-threaded, so `core`'s atomics become plain loads and stores, and two CPUs would lose counts.

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
