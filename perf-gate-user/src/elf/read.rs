//! Bounded reads from a file whose contents are not trusted.
//!
//! Two ways only: a small block in one piece ([`Source::block`]), never larger than the caller's
//! cap, and a long range in chunks through one reused buffer ([`Source::stream`]). Both refuse ranges
//! that do not lie in the file, so that no size read from it can make us allocate or wait.

use super::{Error, Result};
use std::{fs::File, ops::ControlFlow, os::unix::fs::FileExt};

/// Bytes that a streaming step sees beyond those it owns: the longest thing that can be recognised.
pub(super) const OVERLAP: usize = 1024;
const CHUNK: usize = 1 << 20;

#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub file: &'a File,
    pub size: u64,
}

impl Source<'_> {
    /// Whether `len` bytes at `offset` lie in the file.
    pub fn holds(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.size)
    }

    pub fn block(&self, offset: u64, len: u64, cap: u64, what: &'static str) -> Result<Vec<u8>> {
        if len > cap {
            return Err(Error::Damaged(what));
        }
        if !self.holds(offset, len) {
            return Err(Error::Truncated(what));
        }
        let mut buf = vec![0; len as usize];
        self.fill(&mut buf, offset, what)?;
        Ok(buf)
    }

    /// Up to `len` bytes at `offset`; fewer at the end of the file.
    pub fn some(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let len = self.size.saturating_sub(offset).min(len as u64);
        self.block(offset, len, len, "data")
    }

    /// Calls `step(bytes, owned)` over the range: the first `owned` bytes are new, the rest (up to
    /// [`OVERLAP`]) will be seen again. What begins in the owned part is to be handled by that call.
    /// `align` divides every chunk's start.
    pub fn stream(
        &self,
        offset: u64,
        len: u64,
        align: usize,
        what: &'static str,
        mut step: impl FnMut(&[u8], usize, u64) -> ControlFlow<()>,
    ) -> Result<()> {
        if !self.holds(offset, len) {
            return Err(Error::Truncated(what));
        }
        let whole = CHUNK - CHUNK % align.max(1);
        let mut buf = vec![0; len.min((whole + OVERLAP) as u64) as usize];
        let mut at = 0u64;
        while at < len {
            let owned = (len - at).min(whole as u64) as usize;
            let seen = (len - at).min((whole + OVERLAP) as u64) as usize;
            let Some(part) = buf.get_mut(..seen) else {
                break;
            };
            self.fill(part, offset + at, what)?;
            if step(part, owned, at).is_break() {
                break;
            }
            at += owned as u64;
        }
        Ok(())
    }

    fn fill(&self, buf: &mut [u8], offset: u64, what: &'static str) -> Result<()> {
        self.file
            .read_exact_at(buf, offset)
            .map_err(|e| match e.kind() {
                // It shrank since it was opened.
                std::io::ErrorKind::UnexpectedEof => Error::Truncated(what),
                _ => Error::Io(e),
            })
    }
}

/// The NUL-terminated text at the start of `bytes`, if it is terminated and readable.
pub(super) fn text(bytes: &[u8]) -> Option<&str> {
    let end = memchr::memchr(0, bytes)?;
    std::str::from_utf8(&bytes[..end]).ok()
}
