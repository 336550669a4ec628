//! perf-gate: what V8 did in a Node program, seen from outside.
//!
//! Data flows one way: [`target`] launches, [`elf`] and [`v8`] decide where to look, [`observe`]
//! keeps the kernel side attached and drains it, [`model`] folds what came out into plain data,
//! [`judge`] turns that into a verdict, [`report`] prints it. [`cli`] parses and calls.

pub mod cli;
pub mod elf;
pub mod judge;
pub mod kernel;
pub mod model;
pub mod observe;
pub mod report;
pub mod scenario;
pub mod target;
pub mod v8;
