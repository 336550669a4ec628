//! A small but complete "node": every structure that is read, in 4 KB, to be damaged at will.

use perf_gate::v8::{table::rows, version};
use std::{fs::File, io::Write, os::unix::fs::FileExt};

pub const TEXT: usize = 0x1000;
const BASE: u64 = 0x40_0000;
/// `push rbp; mov rbp, rsp; ret`, padded to 16 bytes.
const BODY: [u8; 16] = [
    0x55, 0x48, 0x89, 0xe5, 0xc3, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
];
/// `lock sub [rdi+16], rdx; mov rdi, [rdi+24]; ret`.
const LOCKED: [u8; 16] = [
    0xf0, 0x48, 0x29, 0x57, 0x10, 0x48, 0x8b, 0x7f, 0x18, 0xc3, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90,
];

struct Out(Vec<u8>);

impl Out {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        if self.0.len() < at + bytes.len() {
            self.0.resize(at + bytes.len(), 0);
        }
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
    fn words(&mut self, at: usize, words: &[u64]) {
        for (n, word) in words.iter().enumerate() {
            self.put(at + 8 * n, &word.to_le_bytes());
        }
    }
    fn end(&self) -> usize {
        self.0.len().next_multiple_of(16)
    }
}

/// The names of the newest version in `.dynsym`, those that only older ones have in `.symtab`.
pub fn node() -> Vec<u8> {
    let mut out = Out(Vec::new());
    let names: Vec<&str> = rows().map(|r| r.names[0].mangled).collect();
    for (n, row) in rows().enumerate() {
        let locked = row.function.ends_with("::Free") && row.function.starts_with("Node");
        out.put(TEXT + 16 * n, if locked { &LOCKED } else { &BODY });
    }
    let numbers = out.end();
    for (n, value) in [14u32, 6, 202, 34].iter().enumerate() {
        out.put(numbers + 4 * n, &value.to_le_bytes());
    }
    let rodata = out.end();
    out.put(
        rodata,
        b"x\0https://nodejs.org/download/release/v26.12.1/node-v26.12.1-headers.tar.gz\0",
    );
    let rodata_end = out.0.len();
    let note = out.end();
    out.put(note, &[4, 0, 0, 0, 8, 0, 0, 0, 3, 0, 0, 0]);
    out.put(note + 12, b"GNU\0");
    out.put(note + 16, &[0xab; 8]);
    let note_end = out.0.len();

    let mut tables = Vec::new();
    for tail in ["", ".cold"] {
        let mut strings = vec![0u8];
        let mut symbols = vec![0u8; 24];
        let mut add = |name: &str, kind: u8, vaddr: u64| {
            symbols.extend((strings.len() as u32).to_le_bytes());
            symbols.extend([0x10 | kind, 0, 1, 0]);
            symbols.extend(vaddr.to_le_bytes());
            symbols.extend(16u64.to_le_bytes());
            strings.extend(name.as_bytes());
            strings.push(0);
        };
        for (n, name) in names.iter().enumerate() {
            add(&format!("{name}{tail}"), 2, BASE + (TEXT + 16 * n) as u64);
        }
        for (n, name) in version::NUMBERS.iter().enumerate() {
            add(name, 1, BASE + (numbers + 4 * n) as u64);
        }
        let at = out.end();
        out.put(at, &symbols);
        let strings_at = at + symbols.len();
        out.put(strings_at, &strings);
        tables.push((at, symbols.len(), strings_at, strings.len()));
    }
    let (symbols, _, strings, strings_len) = tables[0];
    let needed = out.end();
    out.put(needed, b"");
    let dynamic = needed;
    let vaddr = |at: usize| BASE + at as u64;
    out.words(
        dynamic,
        &[
            1,
            1, // DT_NEEDED: the first name will do
            29,
            1, // DT_RUNPATH
            5,
            vaddr(strings),
            10,
            strings_len as u64,
            6,
            vaddr(symbols),
            0,
            0,
        ],
    );
    let dynamic_end = out.0.len();

    let sections = out.end();
    // (type, flags, offset, size, link)
    let mut all = vec![
        (0u64, 0u64, 0u64, 0u64, 0u64),
        (1, 2, rodata as u64, (rodata_end - rodata) as u64, 0),
    ];
    for (n, &(at, len, strings, strings_len)) in tables.iter().enumerate() {
        let kind = if n == 0 { 11 } else { 2 };
        all.push((kind, 2, at as u64, len as u64, 3 + 2 * n as u64));
        all.push((3, 0, strings as u64, strings_len as u64, 0));
    }
    for (n, &(kind, flags, offset, size, link)) in all.iter().enumerate() {
        out.words(
            sections + 64 * n,
            &[kind << 32, flags, 0, offset, size, link, 1, 24],
        );
    }
    let end = out.0.len() as u64;

    out.put(
        0,
        &[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    );
    out.put(16, &[2, 0, 62, 0, 1, 0, 0, 0]);
    out.words(24, &[BASE + TEXT as u64, 64, sections as u64]);
    for (at, value) in [
        (52, 64u16),
        (54, 56),
        (56, 3),
        (58, 64),
        (60, all.len() as u16),
        (62, 0),
    ] {
        out.put(at, &value.to_le_bytes());
    }
    let mut program = |n: usize, kind: u64, flags: u64, from: u64, to: u64| {
        let at = 64 + 56 * n;
        out.words(
            at,
            &[
                kind | flags << 32,
                from,
                BASE + from,
                BASE + from,
                to - from,
                to - from,
                8,
            ],
        );
    };
    program(0, 1, 5, 0, end);
    program(1, 4, 4, note as u64, note_end as u64);
    program(2, 2, 4, dynamic as u64, dynamic_end as u64);
    out.0
}

/// An unnamed file with these contents.
pub fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(bytes).expect("written");
    file
}

/// Puts other contents into such a file.
pub fn refill(file: &File, bytes: &[u8]) {
    file.set_len(bytes.len() as u64).expect("resized");
    file.write_all_at(bytes, 0).expect("written");
}
