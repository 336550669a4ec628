//! An opened program or shared library: identity, segments, dynamic facts, where its tables lie.
//!
//! Opening reads the headers, the notes and the dynamic section, a few KB in all. The section table
//! is only used to find the symbol tables; a file without one (the kernel needs none) still has its
//! dynamic symbols through `PT_DYNAMIC`.

use super::{
    Error, Result,
    headers::{self, TableAt, offset_in},
    read::Source,
};
use std::{
    fs::{File, OpenOptions},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// A text that occurs more often is not what is searched for.
const HITS_CAP: usize = 4096;

/// Identity of the file: two images with equal facts are the same file, unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Facts {
    pub dev: u64,
    pub ino: u64,
    pub size: u64,
    pub mtime_ns: i128,
}

/// A loadable part of the file: only its file-backed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub offset: u64,
    pub vaddr: u64,
    pub len: u64,
    pub executable: bool,
    pub writable: bool,
}

#[derive(Debug)]
pub struct Image {
    file: File,
    path: PathBuf,
    facts: Facts,
    build_id: Option<String>,
    needed: Vec<String>,
    rpath: Option<String>,
    runpath: Option<String>,
    segments: Vec<Segment>,
    pub(super) dynsym: Option<TableAt>,
    pub(super) symtab: Option<TableAt>,
    /// Read-only data (offset, length), in file order.
    constants: Vec<(u64, u64)>,
}

impl Image {
    /// Opens `path`; never blocks, also not on a pipe.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
            .open(path)?;
        Self::from_file(file, path)
    }

    /// `path` is kept for messages only.
    pub fn from_file(file: File, path: impl Into<PathBuf>) -> Result<Self> {
        let meta = file.metadata()?;
        let kind = meta.file_type();
        if !kind.is_file() {
            return Err(Error::NotRegular(if kind.is_dir() {
                "a directory"
            } else if kind.is_fifo() {
                "a pipe"
            } else if kind.is_socket() {
                "a socket"
            } else {
                "a device"
            }));
        }
        let facts = Facts {
            dev: meta.dev(),
            ino: meta.ino(),
            size: meta.size(),
            mtime_ns: i128::from(meta.mtime()) * 1_000_000_000 + i128::from(meta.mtime_nsec()),
        };
        let source = Source {
            file: &file,
            size: facts.size,
        };
        let head = headers::header(source)?;
        let programs = headers::program_headers(source, &head)?;
        let segments = headers::segments(source, &programs)?;
        let build_id = headers::build_id(source, &programs)?;
        let dynamic = headers::dynamic(source, &programs, &segments)?;
        let sections = headers::sections(source, &head)?;
        Ok(Self {
            path: path.into(),
            facts,
            build_id,
            needed: dynamic.needed,
            rpath: dynamic.rpath,
            runpath: dynamic.runpath,
            segments,
            dynsym: sections.dynsym.or(dynamic.table),
            symtab: sections.symtab,
            constants: sections.constants,
            file,
        })
    }

    #[must_use]
    pub const fn file(&self) -> &File {
        &self.file
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[must_use]
    pub const fn facts(&self) -> Facts {
        self.facts
    }

    /// Hex of the GNU build id; `None` when the linker left none.
    #[must_use]
    pub fn build_id(&self) -> Option<&str> {
        self.build_id.as_deref()
    }

    /// Names of the shared libraries it asks for.
    #[must_use]
    pub fn needed(&self) -> &[String] {
        &self.needed
    }

    #[must_use]
    pub fn rpath(&self) -> Option<&str> {
        self.rpath.as_deref()
    }

    #[must_use]
    pub fn runpath(&self) -> Option<&str> {
        self.runpath.as_deref()
    }

    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Whether a full symbol table (`.symtab`) is there; `strip` removes it.
    #[must_use]
    pub const fn has_symtab(&self) -> bool {
        self.symtab.is_some()
    }

    #[must_use]
    pub fn constants(&self) -> &[(u64, u64)] {
        &self.constants
    }

    /// File offset of code at `vaddr`; `None` outside every executable segment.
    #[must_use]
    pub fn code_offset(&self, vaddr: u64) -> Option<u64> {
        self.offset_of(vaddr, |s| s.executable)
    }

    /// File offset of the bytes that a fresh process sees at `vaddr`.
    #[must_use]
    pub fn data_offset(&self, vaddr: u64) -> Option<u64> {
        self.offset_of(vaddr, |_| true)
    }

    fn offset_of(&self, vaddr: u64, fits: impl Fn(&Segment) -> bool) -> Option<u64> {
        offset_in(&self.segments, vaddr, fits)
    }

    /// Whether the file offset lies in an executable segment.
    #[must_use]
    pub fn is_code(&self, offset: u64) -> bool {
        self.segments.iter().any(|s| {
            s.executable
                && offset
                    .checked_sub(s.offset)
                    .is_some_and(|into| into < s.len)
        })
    }

    /// Up to `len` bytes at a file offset; fewer only at the end of the file.
    pub fn bytes(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.source().some(offset, len)
    }

    /// Code at a file offset, not beyond the end of its segment.
    pub fn code(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let left = self
            .segments
            .iter()
            .filter(|s| s.executable)
            .filter_map(|s| s.len.checked_sub(offset.checked_sub(s.offset)?))
            .max()
            .unwrap_or(0);
        self.source().some(offset, left.min(len as u64) as usize)
    }

    /// First position of `needle` in the read-only data for which `keep` (given 256 bytes from
    /// there on and the file offset) has an answer; reads no more than `limit` bytes.
    pub fn find_constant<T>(
        &self,
        needle: &[u8],
        limit: u64,
        mut keep: impl FnMut(&[u8], u64) -> Option<T>,
    ) -> Result<Option<T>> {
        let finder = memchr::memmem::Finder::new(needle);
        let (mut answer, mut left, mut hits) = (None, limit, 0);
        for &(offset, len) in &self.constants {
            let len = len.min(left);
            left -= len;
            self.source()
                .stream(offset, len, 1, "read-only data", |bytes, owned, at| {
                    let mut from = 0;
                    while let Some(hit) = bytes.get(from..).and_then(|rest| finder.find(rest)) {
                        let hit = from + hit;
                        if hit >= owned {
                            break;
                        }
                        let end = bytes.len().min(hit + 256);
                        answer = keep(&bytes[hit..end], offset + at + hit as u64);
                        hits += 1;
                        if answer.is_some() || hits >= HITS_CAP {
                            return std::ops::ControlFlow::Break(());
                        }
                        from = hit + 1;
                    }
                    std::ops::ControlFlow::Continue(())
                })?;
            if answer.is_some() || left == 0 || hits >= HITS_CAP {
                break;
            }
        }
        Ok(answer)
    }

    pub(super) const fn source(&self) -> Source<'_> {
        Source {
            file: &self.file,
            size: self.facts.size,
        }
    }
}
