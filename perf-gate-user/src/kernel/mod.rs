//! What this machine's kernel offers, and what to do where it does not.

pub mod btf;

pub use btf::task_pid_offset;
