//! Reporters: a finished run and its verdict, printed. One file per format.

#[cfg(test)]
pub(crate) mod sample;
