//! Where `pid` lies in the kernel's `task_struct`.
//!
//! Following forks needs one number about the running kernel: the byte offset of `pid` (and, right
//! behind it, `tgid`) in `struct task_struct`. The kernel publishes the layout of all its types as
//! BTF, a string table and a list of variable-length type records in which a record's number is its
//! position. One forward pass finds the struct; its members are then looked up by name, also
//! inside members without a name (a kernel with randomised struct layout wraps nearly all of them in
//! one). A general BTF library builds a tree of a hundred thousand types for this, which costs more
//! memory than the rest of the supervisor, hence this reader.
//!
//! The bytes come from the kernel, but the reader treats them as hostile: every access is checked
//! and the work is bounded.

use std::{
    fs::File,
    io::{self, Read},
};

/// The running kernel's types.
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";
/// Far above any kernel's BTF (4 to 10 MB).
const LARGEST: u64 = 64 << 20;
/// Members looked at before giving up; a real `task_struct` has about 300.
const MOST_MEMBERS: usize = 20_000;

const MAGIC: u16 = 0xeb9f;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;

#[derive(Debug, thiserror::Error)]
pub enum BtfError {
    #[error(
        "cannot read {VMLINUX}: {0}: child processes cannot be followed; use a kernel built with CONFIG_DEBUG_INFO_BTF"
    )]
    Read(#[from] io::Error),
    #[error(
        "{VMLINUX} is not BTF as known ({0}): child processes cannot be followed; please report this kernel's version"
    )]
    Malformed(&'static str),
    #[error(
        "this kernel's task_struct has no {0} where it was looked for: child processes cannot be followed; please report this kernel's version"
    )]
    NoMember(&'static str),
    #[error(
        "this kernel keeps pid at byte {pid} and tgid at byte {tgid} of task_struct, not side by side: child processes cannot be followed on a kernel with randomised structs"
    )]
    Apart { pid: u32, tgid: u32 },
}

/// Byte offset of `pid` in the running kernel's `task_struct`; `tgid` lies four bytes further.
pub fn task_pid_offset() -> Result<u32, BtfError> {
    let file = File::open(VMLINUX)?;
    // Growing by doubling would copy the megabytes several times and hold two buffers at once.
    let mut bytes = Vec::with_capacity(file.metadata()?.len().min(LARGEST) as usize + 1);
    file.take(LARGEST).read_to_end(&mut bytes)?;
    pid_offset_in(&bytes)
}

/// As [`task_pid_offset`], over the bytes of a BTF blob in this machine's byte order.
pub fn pid_offset_in(bytes: &[u8]) -> Result<u32, BtfError> {
    let btf = Btf::parse(bytes)?;
    let task = btf.find_struct(b"task_struct")?;
    let (mut pid, mut tgid) = (None, None);
    btf.each_member(task, |name, offset| match name {
        b"pid" => pid = pid.or(Some(offset)),
        b"tgid" => tgid = tgid.or(Some(offset)),
        _ => {}
    })?;
    let pid = pid.ok_or(BtfError::NoMember("pid"))?;
    let tgid = tgid.ok_or(BtfError::NoMember("tgid"))?;
    if pid.checked_add(4) != Some(tgid) {
        return Err(BtfError::Apart { pid, tgid });
    }
    Ok(pid)
}

struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type record begins in `types`; type ids count from 1.
    starts: Vec<u32>,
}

/// The fixed head of a type record and the offset of what follows it.
#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    vlen: usize,
    kind_flag: bool,
    body: usize,
}

impl<'a> Btf<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, BtfError> {
        if bytes.get(..2) != Some(&MAGIC.to_ne_bytes()[..]) {
            return Err(BtfError::Malformed("wrong magic"));
        }
        let word = |at| u32_at(bytes, at).ok_or(BtfError::Malformed("short header"));
        let base = word(4)? as usize;
        let section = |offset: u32, length: u32| {
            let start = base.checked_add(offset as usize)?;
            bytes.get(start..start.checked_add(length as usize)?)
        };
        let types = section(word(8)?, word(12)?);
        let strings = section(word(16)?, word(20)?);
        let (Some(types), Some(strings)) = (types, strings) else {
            return Err(BtfError::Malformed("a section lies outside the file"));
        };
        let mut btf = Self {
            types,
            strings,
            starts: Vec::new(),
        };
        // The shortest record is 12 bytes; most have 20 to 30.
        btf.starts.reserve(types.len() / 24);
        let mut at = 0;
        while at < types.len() {
            let head = btf.head(at).ok_or(BtfError::Malformed("cut-off type"))?;
            let tail = match head.kind {
                2 | 7..=12 | 16 | 18 => 0,
                1 | 14 | 17 => 4,
                3 => 12,
                KIND_STRUCT | KIND_UNION | 15 | 19 => 12 * head.vlen,
                6 | 13 => 8 * head.vlen,
                _ => return Err(BtfError::Malformed("unknown kind of type")),
            };
            btf.starts.push(at as u32);
            at = head.body + tail;
        }
        Ok(btf)
    }

    fn head(&self, at: usize) -> Option<Type> {
        let info = u32_at(self.types, at + 4)?;
        // The third word (size or type) is not needed, but has to be there.
        u32_at(self.types, at + 8)?;
        Some(Type {
            name: u32_at(self.types, at)?,
            kind: info >> 24 & 0x1f,
            vlen: (info & 0xffff) as usize,
            kind_flag: info >> 31 != 0,
            body: at + 12,
        })
    }

    fn by_id(&self, id: u32) -> Option<Type> {
        let start = *self.starts.get((id as usize).checked_sub(1)?)?;
        self.head(start as usize)
    }

    fn name(&self, offset: u32) -> &'a [u8] {
        let rest = self.strings.get(offset as usize..).unwrap_or_default();
        match memchr::memchr(0, rest) {
            Some(end) => &rest[..end],
            None => &[],
        }
    }

    fn find_struct(&self, wanted: &[u8]) -> Result<Type, BtfError> {
        self.starts
            .iter()
            .filter_map(|&at| self.head(at as usize))
            .find(|t| t.kind == KIND_STRUCT && self.name(t.name) == wanted)
            .ok_or(BtfError::Malformed("no task_struct"))
    }

    /// Calls `see` with name and byte offset of every named member of `root`, also of those in
    /// members that have no name themselves. Bit fields are left out.
    fn each_member(&self, root: Type, mut see: impl FnMut(&'a [u8], u32)) -> Result<(), BtfError> {
        let mut todo = vec![(root, 0u32)];
        let mut seen = 0;
        while let Some((of, base_bits)) = todo.pop() {
            for n in 0..of.vlen {
                seen += 1;
                if seen > MOST_MEMBERS {
                    return Err(BtfError::Malformed("too many members"));
                }
                let at = of.body + 12 * n;
                let words = (
                    u32_at(self.types, at),
                    u32_at(self.types, at + 4),
                    u32_at(self.types, at + 8),
                );
                let (Some(name), Some(kind_id), Some(raw)) = words else {
                    return Err(BtfError::Malformed("cut-off member"));
                };
                // With the flag the upper byte is the width of a bit field, 0 for a plain member.
                let (width, bits) = match of.kind_flag {
                    true => (raw >> 24, raw & 0x00ff_ffff),
                    false => (0, raw),
                };
                let Some(bits) = base_bits.checked_add(bits) else {
                    return Err(BtfError::Malformed("a member lies too far out"));
                };
                let name = self.name(name);
                if name.is_empty() {
                    if let Some(inner) = self.by_id(kind_id)
                        && matches!(inner.kind, KIND_STRUCT | KIND_UNION)
                    {
                        todo.push((inner, bits));
                    }
                } else if width == 0 && bits % 8 == 0 {
                    see(name, bits / 8);
                }
            }
        }
        Ok(())
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(four.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STRINGS: &[u8] = b"\0int\0pid\0tgid\0task_struct\0state\0";

    fn blob(types: &[u32]) -> Vec<u8> {
        let types: Vec<u8> = types.iter().flat_map(|w| w.to_ne_bytes()).collect();
        let mut out = MAGIC.to_ne_bytes().to_vec();
        out.extend([1, 0]);
        for word in [
            24,
            0,
            types.len() as u32,
            types.len() as u32,
            STRINGS.len() as u32,
        ] {
            out.extend(word.to_ne_bytes());
        }
        out.extend(types);
        out.extend(STRINGS);
        out
    }

    const INT: [u32; 4] = [1, 1 << 24, 4, 32];

    /// `struct task_struct { int state; int pid; int tgid; }`, the last two at the given bits.
    fn plain(pid: u32, tgid: u32) -> Vec<u8> {
        let task = [14, 4 << 24 | 3, 64, 26, 1, 0, 5, 1, pid, 9, 1, tgid];
        blob(&[&INT[..], &task].concat())
    }

    #[test]
    fn finds_plain_members() {
        assert_eq!(pid_offset_in(&plain(320, 352)).unwrap(), 40);
    }

    #[test]
    fn finds_members_of_an_anonymous_struct() {
        let inner = [0, 4 << 24 | 2, 8, 5, 1, 32, 9, 1, 64];
        let task = [14, 4 << 24 | 1, 64, 0, 2, 64];
        let bytes = blob(&[&INT[..], &inner, &task].concat());
        assert_eq!(pid_offset_in(&bytes).unwrap(), 12);
    }

    #[test]
    fn refuses_what_it_cannot_vouch_for() {
        let apart = pid_offset_in(&plain(320, 384));
        assert!(matches!(apart, Err(BtfError::Apart { pid: 40, tgid: 48 })));
        assert!(pid_offset_in(b"").is_err());
        assert!(pid_offset_in(&blob(&INT)).is_err());
        // An anonymous member of its own type must not run for ever.
        let own = blob(&[14, 4 << 24 | 2, 64, 0, 1, 0, 0, 1, 0]);
        assert!(matches!(pid_offset_in(&own), Err(BtfError::Malformed(_))));
    }

    #[test]
    fn reads_this_kernel_quickly() {
        if !std::path::Path::new(VMLINUX).exists() {
            eprintln!("SKIPPED: no {VMLINUX} here");
            return;
        }
        let begin = std::time::Instant::now();
        let offset = task_pid_offset().unwrap();
        eprintln!("offset {offset} in {:?}", begin.elapsed());
        assert!(offset > 0 && offset < 32_768 && offset.is_multiple_of(4));
    }

    proptest! {
        #[test]
        fn survives_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = pid_offset_in(&bytes);
        }

        #[test]
        fn survives_any_damage(at in 0usize..120, with in any::<u8>(), cut in 0usize..150) {
            let mut bytes = plain(320, 352);
            let last = bytes.len() - 1;
            bytes[at.min(last)] = with;
            bytes.truncate(cut.max(1));
            let _ = pid_offset_in(&bytes);
        }
    }
}
