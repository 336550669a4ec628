//! Bad input, odd programs and hard ends: nothing may hang, be missed, or stay behind.

mod bad_programs;
mod deaths;
mod files;
mod fixtures;
mod namespaces;
mod parents;
mod signals;
mod support;
mod trees;
mod workers;
