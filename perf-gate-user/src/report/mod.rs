//! Reporters: a finished run and its verdict, printed. One file per format.

pub mod ndjson;
pub mod output;
mod schema;
pub mod text;

#[cfg(test)]
pub(crate) mod sample;
