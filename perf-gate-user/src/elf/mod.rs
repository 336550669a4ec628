//! What an ELF file says, read with as little of it as possible.
//!
//! A node binary is 90-150 MB and its symbol tables 10-25 MB, while the supervisor wants to stay
//! under 25 MB as a whole. So nothing here maps or loads a table: headers are read by bounded
//! `pread`s ([`image`]), names are searched by streaming the string tables through one buffer
//! ([`symbols`]), and the machine code at a function is decoded from a few dozen bytes ([`insn`]).
//! Every size and count that comes from the file is checked against the file's real size and a cap
//! before it is believed, because the file belongs to the watched user, not to us.

mod headers;
pub mod image;
pub mod insn;
mod read;
pub mod symbols;

pub use image::{Facts, Image, Segment};
pub use insn::{Refusal, Site, entry_site, return_site};
pub use symbols::{Kind, Symbol, Table};

/// Why a file cannot be examined. The caller puts the path in front.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the file is empty (0 bytes); install the program again")]
    Empty,
    #[error("it is {0}, not a regular file; name the program itself")]
    NotRegular(&'static str),
    #[error("it is not an ELF program (a script or data?); name the program that runs it")]
    NotElf,
    #[error("the file is cut short: {0} lies beyond its end; install the program again")]
    Truncated(&'static str),
    #[error("it is a 32-bit program; only 64-bit x86-64 programs can be watched")]
    Not64Bit,
    #[error("it is built for another machine (ELF machine {0}); only x86-64 can be watched")]
    WrongMachine(u16),
    #[error("it is an ELF file of type {0}, neither a program nor a shared library")]
    NotProgram(u16),
    #[error("the ELF file is damaged: {0}; install the program again")]
    Damaged(&'static str),
    #[error("it cannot be read ({0}); check its permissions")]
    Io(#[from] std::io::Error),
}

pub type Result<T> = std::result::Result<T, Error>;
