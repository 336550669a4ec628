//! What this machine's kernel offers, and what to do where it does not.
//!
//! [`btf`] finds the one kernel offset that following forks needs, [`preflight`] looks at everything
//! else that `watch` depends on, by trying it where that is possible: what a kernel refuses depends
//! on capabilities, seccomp filters, lockdown and settings together, and no reading of settings
//! foretells it.

mod attempt;
pub mod btf;
pub mod preflight;

pub use btf::task_pid_offset;
pub use preflight::{Check, Status, preflight};
