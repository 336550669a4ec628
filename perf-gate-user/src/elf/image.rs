//! An opened program or shared library: identity, segments, dynamic facts, where its tables lie.
//!
//! Opening reads the headers, the notes and the dynamic section, a few KB in all. The section table
//! is only used to find the symbol tables; a file without one (the kernel needs none) still has its
//! dynamic symbols through `PT_DYNAMIC`.

use super::{
    Error, Result,
    read::{Source, text},
};
use object::{
    LittleEndian as LE, elf,
    pod::{from_bytes, slice_from_bytes},
};
use std::{
    fs::{File, OpenOptions},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// The kernel itself refuses more program headers than this.
const PHDRS_CAP: u64 = 64 << 10;
const SHDRS_CAP: u64 = 4 << 20;
const NOTES_CAP: u64 = 64 << 10;
const DYNAMIC_CAP: u64 = 256 << 10;
const NEEDED_CAP: usize = 1024;
/// Far beyond the largest known (19 MB of names, 4 MB of symbols), yet scanned within a second.
const STRINGS_CAP: u64 = 256 << 20;
const SYMBOLS_CAP: u64 = 256 << 20;
/// A text that occurs more often is not what is searched for.
const HITS_CAP: usize = 4096;
const PATH_MAX: usize = 4096;

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

/// Where one symbol table and its names lie in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableAt {
    pub symbols: u64,
    pub symbols_len: u64,
    pub strings: u64,
    pub strings_len: u64,
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
        let head = header(source)?;
        let programs = program_headers(source, &head)?;
        let segments = segments(source, &programs)?;
        let build_id = build_id(source, &programs)?;
        let dynamic = dynamic(source, &programs, &segments)?;
        let sections = sections(source, &head)?;
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

fn offset_in(segments: &[Segment], vaddr: u64, fits: impl Fn(&Segment) -> bool) -> Option<u64> {
    segments.iter().filter(|s| fits(s)).find_map(|s| {
        let into = vaddr.checked_sub(s.vaddr)?;
        (into < s.len).then(|| s.offset.checked_add(into))?
    })
}

type Header = elf::FileHeader64<LE>;
type Program = elf::ProgramHeader64<LE>;

fn header(source: Source) -> Result<Header> {
    if source.size == 0 {
        return Err(Error::Empty);
    }
    let start = source.some(0, size_of::<Header>())?;
    if !start.starts_with(&elf::ELFMAG) {
        return Err(Error::NotElf);
    }
    // Class first: a 32-bit header is shorter than ours.
    match start.get(4) {
        Some(&elf::ELFCLASS64) => {}
        Some(&elf::ELFCLASS32) => return Err(Error::Not64Bit),
        Some(_) => return Err(Error::Damaged("its class byte is unknown")),
        None => return Err(Error::Truncated("the file header")),
    }
    let (head, _) =
        from_bytes::<Header>(&start).map_err(|()| Error::Truncated("the file header"))?;
    if head.e_ident.data != elf::ELFDATA2LSB {
        return Err(Error::WrongMachine(head.e_machine.get(LE).swap_bytes()));
    }
    if head.e_machine.get(LE) != elf::EM_X86_64 {
        return Err(Error::WrongMachine(head.e_machine.get(LE)));
    }
    match head.e_type.get(LE) {
        elf::ET_EXEC | elf::ET_DYN => Ok(*head),
        other => Err(Error::NotProgram(other)),
    }
}

fn program_headers(source: Source, head: &Header) -> Result<Vec<Program>> {
    let count = u64::from(head.e_phnum.get(LE));
    if count == 0 {
        return Err(Error::Damaged("it has no program headers"));
    }
    if u64::from(head.e_phentsize.get(LE)) != size_of::<Program>() as u64 {
        return Err(Error::Damaged("its program headers have an unknown size"));
    }
    let len = count * size_of::<Program>() as u64;
    let raw = source.block(
        head.e_phoff.get(LE),
        len,
        PHDRS_CAP,
        "the program header table",
    )?;
    let (all, _) = slice_from_bytes::<Program>(&raw, count as usize)
        .map_err(|()| Error::Truncated("the program header table"))?;
    Ok(all.to_vec())
}

fn segments(source: Source, programs: &[Program]) -> Result<Vec<Segment>> {
    let mut all = Vec::new();
    for p in programs.iter().filter(|p| p.p_type.get(LE) == elf::PT_LOAD) {
        let segment = Segment {
            offset: p.p_offset.get(LE),
            vaddr: p.p_vaddr.get(LE),
            len: p.p_filesz.get(LE),
            executable: p.p_flags.get(LE) & elf::PF_X != 0,
            writable: p.p_flags.get(LE) & elf::PF_W != 0,
        };
        if !source.holds(segment.offset, segment.len) {
            return Err(Error::Truncated("a loadable segment"));
        }
        all.push(segment);
    }
    Ok(all)
}

fn build_id(source: Source, programs: &[Program]) -> Result<Option<String>> {
    for p in programs.iter().filter(|p| p.p_type.get(LE) == elf::PT_NOTE) {
        let len = p.p_filesz.get(LE).min(NOTES_CAP);
        let raw = source.block(p.p_offset.get(LE), len, NOTES_CAP, "a note segment")?;
        let align = p.p_align.get(LE);
        let Ok(notes) =
            object::read::elf::NoteIterator::<elf::FileHeader64<LE>>::new(LE, align, &raw)
        else {
            continue;
        };
        let ids = notes.map_while(std::result::Result::ok).find_map(|note| {
            let own = note.name() == elf::ELF_NOTE_GNU && note.n_type(LE) == elf::NT_GNU_BUILD_ID;
            // Sizes in use are 8 to 32 bytes; a longer one would only make a strange file name.
            (own && (1..=64).contains(&note.desc().len())).then(|| hex(note.desc()))
        });
        if ids.is_some() {
            return Ok(ids);
        }
    }
    Ok(None)
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[derive(Default)]
struct Dynamic {
    needed: Vec<String>,
    rpath: Option<String>,
    runpath: Option<String>,
    table: Option<TableAt>,
}

fn dynamic(source: Source, programs: &[Program], segments: &[Segment]) -> Result<Dynamic> {
    let mut out = Dynamic::default();
    let Some(p) = programs
        .iter()
        .find(|p| p.p_type.get(LE) == elf::PT_DYNAMIC)
    else {
        return Ok(out);
    };
    let len = p.p_filesz.get(LE);
    let raw = source.block(p.p_offset.get(LE), len, DYNAMIC_CAP, "the dynamic section")?;
    let count = raw.len() / size_of::<elf::Dyn64<LE>>();
    let (entries, _) = slice_from_bytes::<elf::Dyn64<LE>>(&raw, count)
        .map_err(|()| Error::Truncated("the dynamic section"))?;
    let entries: Vec<(u64, u64)> = entries
        .iter()
        .map(|d| (d.d_tag.get(LE), d.d_val.get(LE)))
        .take_while(|&(tag, _)| tag != u64::from(elf::DT_NULL))
        .collect();
    let value = |wanted: u32| {
        entries
            .iter()
            .find(|&&(tag, _)| tag == u64::from(wanted))
            .map(|&(_, value)| value)
    };
    let place = |vaddr: Option<u64>| offset_in(segments, vaddr?, |_| true);
    let (Some(strings), Some(strings_len)) = (place(value(elf::DT_STRTAB)), value(elf::DT_STRSZ))
    else {
        return Ok(out);
    };
    let string = |at: u64| -> Result<Option<String>> {
        if at >= strings_len {
            return Ok(None);
        }
        let Some(offset) = strings.checked_add(at) else {
            return Ok(None);
        };
        Ok(text(&source.some(offset, PATH_MAX)?).map(str::to_owned))
    };
    for &(tag, at) in entries.iter().take(NEEDED_CAP) {
        match u32::try_from(tag) {
            Ok(elf::DT_NEEDED) => out.needed.extend(string(at)?),
            Ok(elf::DT_RPATH) => out.rpath = string(at)?,
            Ok(elf::DT_RUNPATH) => out.runpath = string(at)?,
            _ => {}
        }
    }
    // The dynamic section does not say how many symbols there are, but every linker puts their
    // names right behind them; a name offset that does not fit is ignored later.
    if let Some(symbols) = place(value(elf::DT_SYMTAB)).filter(|&at| at < strings) {
        out.table = table(source, symbols, strings - symbols, strings, strings_len).ok();
    }
    Ok(out)
}

fn table(
    source: Source,
    symbols: u64,
    symbols_len: u64,
    strings: u64,
    strings_len: u64,
) -> Result<TableAt> {
    if symbols_len > SYMBOLS_CAP || strings_len > STRINGS_CAP {
        return Err(Error::Damaged("its symbol table is absurdly large"));
    }
    if !source.holds(symbols, symbols_len) || !source.holds(strings, strings_len) {
        return Err(Error::Truncated("a symbol table"));
    }
    let entry = size_of::<elf::Sym64<LE>>() as u64;
    Ok(TableAt {
        symbols,
        symbols_len: symbols_len - symbols_len % entry,
        strings,
        strings_len,
    })
}

#[derive(Default)]
struct Sections {
    dynsym: Option<TableAt>,
    symtab: Option<TableAt>,
    constants: Vec<(u64, u64)>,
}

fn sections(source: Source, head: &Header) -> Result<Sections> {
    type Section = elf::SectionHeader64<LE>;
    const ENTRY: u64 = size_of::<Section>() as u64;
    const WHAT: &str = "the section table";
    let mut out = Sections::default();
    let at = head.e_shoff.get(LE);
    if at == 0 {
        return Ok(out);
    }
    let first = source.block(at, ENTRY, ENTRY, WHAT)?;
    let (first, _) = from_bytes::<Section>(&first).map_err(|()| Error::Truncated(WHAT))?;
    if u64::from(head.e_shentsize.get(LE)) != ENTRY {
        return Err(Error::Damaged("its section headers have an unknown size"));
    }
    // More than 65,279 sections do not fit the header; their count is then kept in the first one.
    let count = match head.e_shnum.get(LE) {
        0 => first.sh_size.get(LE),
        n => u64::from(n),
    };
    let len = count
        .checked_mul(ENTRY)
        .ok_or(Error::Damaged("its section count is absurd"))?;
    let raw = source.block(at, len, SHDRS_CAP, WHAT)?;
    let (all, _) =
        slice_from_bytes::<Section>(&raw, count as usize).map_err(|()| Error::Truncated(WHAT))?;
    for s in all {
        let (kind, flags) = (s.sh_type.get(LE), s.sh_flags.get(LE));
        let (offset, len) = (s.sh_offset.get(LE), s.sh_size.get(LE));
        match kind {
            elf::SHT_SYMTAB | elf::SHT_DYNSYM => {
                let strings = all
                    .get(s.sh_link.get(LE) as usize)
                    .filter(|s| s.sh_type.get(LE) == elf::SHT_STRTAB)
                    .ok_or(Error::Damaged("a symbol table has no names"))?;
                let found = table(
                    source,
                    offset,
                    len,
                    strings.sh_offset.get(LE),
                    strings.sh_size.get(LE),
                )?;
                let slot = if kind == elf::SHT_SYMTAB {
                    &mut out.symtab
                } else {
                    &mut out.dynsym
                };
                slot.get_or_insert(found);
            }
            elf::SHT_PROGBITS
                if flags & u64::from(elf::SHF_ALLOC) != 0
                    && flags & u64::from(elf::SHF_WRITE | elf::SHF_EXECINSTR) == 0
                    && source.holds(offset, len)
                    && out.constants.len() < 64 =>
            {
                out.constants.push((offset, len));
            }
            _ => {}
        }
    }
    Ok(out)
}
