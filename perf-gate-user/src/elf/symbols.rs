//! Symbols by name, without loading a table.
//!
//! Two streaming passes per table. First through the names: every wanted name that starts anywhere
//! in the string table (also in the middle of a longer one, because linkers merge common tails) and
//! that ends there, or goes on with a compiler's suffix such as `.constprop.0`, gives one string
//! offset. Then through the symbols: those whose name offset is exactly one of these are kept. Names
//! are searched by the common prefix of each group of wanted names (`_ZN2v88internal`), which is one
//! fast substring search instead of one per name, and are then looked up in a hash map.

use super::{
    Error, Image, Result,
    headers::TableAt,
    read::{OVERLAP, Source},
};
use memchr::memmem::Finder;
use object::{LittleEndian as LE, elf, pod::slice_from_bytes};
use std::{
    collections::{BTreeMap, HashMap},
    ops::ControlFlow,
};

/// A real binary has one string per wanted name and a few suffixed ones.
const NAMES_CAP: usize = 4096;
const SYMBOLS_CAP: usize = 4096;
const ENTRY: usize = size_of::<elf::Sym64<LE>>();

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// Survives `strip`.
    Dynsym,
    Symtab,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Function,
    Data,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Index into the list of wanted names.
    pub wanted: usize,
    /// As in the file, with the compiler's suffix.
    pub name: String,
    /// What follows the wanted name: empty, or from the first `.` on.
    pub suffix: String,
    pub kind: Kind,
    pub vaddr: u64,
    /// In the file. For a function always inside an executable segment.
    pub offset: u64,
    pub size: u64,
    pub table: Table,
}

impl Image {
    /// Defined symbols with these names, dynamic ones first. One function that is in both tables is
    /// returned once.
    pub fn find_symbols(&self, wanted: &[&str]) -> Result<Vec<Symbol>> {
        let search = Search::new(wanted);
        let mut found: Vec<Symbol> = Vec::new();
        for (at, table) in [(self.dynsym, Table::Dynsym), (self.symtab, Table::Symtab)] {
            let Some(at) = at else { continue };
            let names = search.names(self.source(), at)?;
            if names.is_empty() {
                continue;
            }
            for symbol in self.with_names(at, table, wanted, &names)? {
                let known = found
                    .iter()
                    .any(|f| f.wanted == symbol.wanted && f.vaddr == symbol.vaddr);
                if !known {
                    found.push(symbol);
                }
            }
        }
        Ok(found)
    }

    fn with_names(
        &self,
        at: TableAt,
        table: Table,
        wanted: &[&str],
        names: &BTreeMap<u32, Name>,
    ) -> Result<Vec<Symbol>> {
        let mut found = Vec::new();
        let mut too_many = false;
        // One bit per low half of a name offset spares nearly every lookup.
        let mut maybe = vec![0u64; 1 << 10];
        for &offset in names.keys() {
            maybe[(offset as u16 >> 6) as usize] |= 1 << (offset & 63);
        }
        self.source().stream(
            at.symbols,
            at.symbols_len,
            ENTRY,
            "a symbol table",
            |bytes, owned, _| {
                let Ok((symbols, _)) = slice_from_bytes::<elf::Sym64<LE>>(bytes, owned / ENTRY)
                else {
                    return ControlFlow::Break(());
                };
                for s in symbols {
                    let offset = s.st_name.get(LE);
                    if maybe[(offset as u16 >> 6) as usize] & 1 << (offset & 63) == 0 {
                        continue;
                    }
                    let Some(name) = names.get(&offset) else {
                        continue;
                    };
                    found.extend(self.symbol(s, name, table, wanted));
                    if found.len() > SYMBOLS_CAP {
                        too_many = true;
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            },
        )?;
        if too_many {
            return Err(Error::Damaged("one symbol name occurs thousands of times"));
        }
        Ok(found)
    }

    fn symbol(
        &self,
        s: &elf::Sym64<LE>,
        name: &Name,
        table: Table,
        wanted: &[&str],
    ) -> Option<Symbol> {
        let vaddr = s.st_value.get(LE);
        let defined = s.st_shndx.get(LE) != elf::SHN_UNDEF && vaddr != 0;
        let (kind, offset) = match s.st_info & 0xf {
            elf::STT_FUNC if defined => (Kind::Function, self.code_offset(vaddr)?),
            elf::STT_OBJECT if defined => (Kind::Data, self.data_offset(vaddr)?),
            _ => return None,
        };
        Some(Symbol {
            wanted: name.wanted,
            name: format!("{}{}", wanted.get(name.wanted)?, name.suffix),
            suffix: name.suffix.clone(),
            kind,
            vaddr,
            offset,
            size: s.st_size.get(LE),
            table,
        })
    }
}

/// A wanted name at one offset of a string table.
struct Name {
    wanted: usize,
    suffix: String,
}

/// The wanted names, prepared for streaming.
struct Search<'w> {
    groups: Vec<Finder<'w>>,
    index: HashMap<&'w [u8], usize>,
}

impl<'w> Search<'w> {
    /// Names with this many equal first bytes are searched by their longest common prefix.
    const GROUP: usize = 7;

    fn new(wanted: &[&'w str]) -> Self {
        let mut groups: BTreeMap<&[u8], &'w [u8]> = BTreeMap::new();
        for name in wanted {
            let name = name.as_bytes();
            let key = &name[..name.len().min(Self::GROUP)];
            groups
                .entry(key)
                .and_modify(|prefix| {
                    let same = prefix.iter().zip(name).take_while(|(a, b)| a == b).count();
                    *prefix = &prefix[..same];
                })
                .or_insert(name);
        }
        Self {
            groups: groups.values().map(|prefix| Finder::new(*prefix)).collect(),
            index: wanted
                .iter()
                .enumerate()
                .map(|(n, name)| (name.as_bytes(), n))
                .collect(),
        }
    }

    fn names(&self, source: Source, at: TableAt) -> Result<BTreeMap<u32, Name>> {
        let mut names = BTreeMap::new();
        source.stream(
            at.strings,
            at.strings_len,
            1,
            "a string table",
            |bytes, owned, base| {
                for finder in &self.groups {
                    for hit in finder.find_iter(bytes).take_while(|&hit| hit < owned) {
                        let Ok(offset) = u32::try_from(base + hit as u64) else {
                            return ControlFlow::Break(());
                        };
                        if let Some(name) = self.name(&bytes[hit..]) {
                            names.insert(offset, name);
                        }
                        if names.len() > NAMES_CAP {
                            return ControlFlow::Break(());
                        }
                    }
                }
                ControlFlow::Continue(())
            },
        )?;
        if names.len() > NAMES_CAP {
            return Err(Error::Damaged("one symbol name occurs thousands of times"));
        }
        Ok(names)
    }

    /// The wanted name that `bytes` start with, if nothing but a suffix follows it.
    fn name(&self, bytes: &[u8]) -> Option<Name> {
        let bytes = &bytes[..bytes.len().min(OVERLAP)];
        let end = memchr::memchr2(0, b'.', bytes)?;
        let &wanted = self.index.get(&bytes[..end])?;
        let rest = &bytes[end..];
        let suffix = std::str::from_utf8(&rest[..memchr::memchr(0, rest)?]).ok()?;
        Some(Name {
            wanted,
            suffix: suffix.to_owned(),
        })
    }
}
