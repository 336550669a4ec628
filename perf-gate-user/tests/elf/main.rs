//! The ELF side against real node binaries and against files that lie.
//!
//! Real binaries are taken from the folder in `PERF_GATE_NODES` or the cache that `cargo xtask nodes`
//! fills; without any, those tests say so and pass.

mod bad_input;
mod fuzz;
mod locating;
mod real;
mod synthetic;
