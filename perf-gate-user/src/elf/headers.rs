//! Parsing of what [`super::Image`] opens: file header, program headers, notes, the dynamic section and the
//! section table.
//!
//! Layouts are the `object` crate's; the reads are ours, each with a cap, because the crate's own
//! readers want the whole file or keep what they read.

use super::{
    Error, Result, Segment,
    read::{Source, text},
};
use object::{
    LittleEndian as LE, elf,
    pod::{from_bytes, slice_from_bytes},
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
const PATH_MAX: usize = 4096;

/// Where one symbol table and its names lie in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableAt {
    pub symbols: u64,
    pub symbols_len: u64,
    pub strings: u64,
    pub strings_len: u64,
}

pub(super) fn offset_in(
    segments: &[Segment],
    vaddr: u64,
    fits: impl Fn(&Segment) -> bool,
) -> Option<u64> {
    segments.iter().filter(|s| fits(s)).find_map(|s| {
        let into = vaddr.checked_sub(s.vaddr)?;
        (into < s.len).then(|| s.offset.checked_add(into))?
    })
}

pub(super) type Header = elf::FileHeader64<LE>;
pub(super) type Program = elf::ProgramHeader64<LE>;

pub(super) fn header(source: Source) -> Result<Header> {
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

pub(super) fn program_headers(source: Source, head: &Header) -> Result<Vec<Program>> {
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

pub(super) fn segments(source: Source, programs: &[Program]) -> Result<Vec<Segment>> {
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

pub(super) fn build_id(source: Source, programs: &[Program]) -> Result<Option<String>> {
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
pub(super) struct Dynamic {
    pub needed: Vec<String>,
    pub rpath: Option<String>,
    pub runpath: Option<String>,
    pub table: Option<TableAt>,
}

pub(super) fn dynamic(
    source: Source,
    programs: &[Program],
    segments: &[Segment],
) -> Result<Dynamic> {
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
pub(super) struct Sections {
    pub dynsym: Option<TableAt>,
    pub symtab: Option<TableAt>,
    pub constants: Vec<(u64, u64)>,
}

pub(super) fn sections(source: Source, head: &Header) -> Result<Sections> {
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
