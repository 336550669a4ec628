//! What this machine's kernel offers, and what to do where it does not.
//!
//! [`btf`] finds the one kernel offset that following forks needs, [`preflight`] looks at everything
//! else that `watch` depends on, by trying it where that is possible: what a kernel refuses depends
//! on capabilities, seccomp filters, lockdown and settings together, and no reading of settings
//! foretells it.

mod attempt;
pub mod bpf;
pub mod btf;
pub mod preflight;

pub use btf::task_pid_offset;
pub use preflight::{Check, Status, preflight};

/// Whether `/proc` tells of the processes that we mean. In a PID namespace of our own with the `/proc`
/// of another, the same number is another process.
#[must_use]
pub fn proc_is_ours() -> bool {
    std::fs::read_link("/proc/self")
        .is_ok_and(|l| l.to_str().and_then(|l| l.parse().ok()) == Some(std::process::id()))
}

/// What to do when it does not.
pub const PROC_ADVICE: &str =
    "mount the right one: unshare with --mount-proc, or mount -t proc proc /proc";
